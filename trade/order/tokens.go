package order

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
)

// SceneOrder is the scene of the token that POST /orders wants.
const SceneOrder = "order"

const tokenPrefix = "ct1"

// tokenClaims is what a client token says, signed by us.
type tokenClaims struct {
	ID      string `json:"i"` // UUIDv7: what is claimed
	User    string `json:"u"`
	Scene   string `json:"s"`
	Expires int64  `json:"e"` // microseconds
}

type claimRow struct {
	TokenID     string `db:"token_id"`
	UserID      string `db:"user_id"`
	OrderNo     string `db:"order_no"`
	Fingerprint string `db:"fingerprint"`
	ClaimedAt   int64  `db:"claimed_at"`
}

// Token is a client token or a session.
type Token struct {
	Token     string    `json:"token"`
	Scene     string    `json:"scene,omitempty"`
	ExpiresAt time.Time `json:"expires_at"`
}

type tokenAnswer struct{ Body Token }

type issueToken struct {
	Key  string `header:"Idempotency-Key" doc:"1 to 255 bytes, your choice"`
	Body struct {
		Scene string `json:"scene" enum:"order" doc:"what the token is for"`
	}
}

type mintSession struct {
	Key  string `header:"Idempotency-Key" doc:"1 to 255 bytes, your choice"`
	User string `path:"id" maxLength:"64"`
	Body *struct {
		TTLSeconds int64 `json:"ttl_seconds,omitempty" minimum:"0" maximum:"2592000" doc:"how long it is valid; default 12 h, at most 30 days"`
	}
}

func (s *Service) tokenRoutes(api huma.API) {
	huma.Register(api, huma.Operation{
		OperationID: "issue-token", Method: http.MethodPost, Path: "/tokens", Tags: []string{Name}, DefaultStatus: http.StatusCreated,
		Summary:     "Issue a client token",
		Description: "For the user who asks, one scene, a time window, a single use. POST /orders wants one of scene \"order\".",
	}, s.issueToken)
	huma.Register(api, huma.Operation{
		OperationID: "mint-session", Method: http.MethodPost, Path: "/users/{id}/sessions", Tags: []string{Name},
		DefaultStatus: http.StatusCreated, Summary: "Make a user's session",
		Description: "Operator: the shop's own login calls this. The token is the user's bearer token.",
	}, s.mintSession)
}

func (s *Service) issueToken(ctx context.Context, in *issueToken) (*tokenAnswer, error) {
	user, err := trade.RequireUser(ctx)
	if err != nil {
		return nil, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("token id: %w", err)
	}
	expires := s.deps.Now().Add(s.cfg.TokenTTL).UTC().Truncate(time.Microsecond)
	token, err := trade.SignToken(s.cfg.TokenSecret, tokenPrefix, tokenClaims{id.String(), user.ID, in.Body.Scene, expires.UnixMicro()})
	if err != nil {
		return nil, err
	}
	return &tokenAnswer{Token{token, in.Body.Scene, expires}}, nil
}

func (s *Service) mintSession(ctx context.Context, in *mintSession) (*tokenAnswer, error) {
	if err := trade.RequireOperator(ctx); err != nil {
		return nil, err
	}
	ttl := s.cfg.SessionTTL
	if in.Body != nil && in.Body.TTLSeconds > 0 {
		ttl = time.Duration(in.Body.TTLSeconds) * time.Second
	}
	expires := s.deps.Now().Add(ttl).UTC().Truncate(time.Microsecond)
	token, err := trade.MintSession(s.cfg.TokenSecret, in.User, expires)
	switch {
	case errors.Is(err, trade.ErrName):
		return nil, trade.Invalid("path.id", err.Error(), "use another user id")
	case err != nil:
		return nil, err
	}
	return &tokenAnswer{Token{Token: token, ExpiresAt: expires}}, nil
}

const tokenField = "body.client_token"

// readToken checks the token's signature, user and scene, not its age: a retry of an order that was placed in time gets its
// answer however late it comes.
func (s *Service) readToken(token string, user trade.Principal) (tokenClaims, error) {
	var c tokenClaims
	if token == "" {
		return c, trade.NewProblem(http.StatusBadRequest, tokenField, "the client token is missing",
			"ask POST /tokens for one and send it with the order")
	}
	if err := trade.OpenToken(s.cfg.TokenSecret, tokenPrefix, token, &c); err != nil {
		return c, trade.NewProblem(http.StatusForbidden, tokenField, "the client token is not one of ours", "ask POST /tokens for a new one")
	}
	if c.User != user.ID {
		return c, trade.NewProblem(http.StatusForbidden, tokenField, "the client token was issued to another user",
			"ask POST /tokens for your own")
	}
	if c.Scene != SceneOrder {
		return c, trade.NewProblem(http.StatusForbidden, tokenField, fmt.Sprintf("the client token is for the scene %q", c.Scene),
			`ask POST /tokens for one of scene "order"`)
	}
	return c, nil
}

func errTokenExpired() error {
	return trade.NewProblem(http.StatusGone, tokenField, "the client token has expired", "ask POST /tokens for a new one")
}

func errTokenReused(orderNo string) error {
	return trade.NewProblem(http.StatusUnprocessableEntity, tokenField,
		"the client token was used for another content: order "+orderNo, "ask POST /tokens for a new one, or send exactly the first content")
}

// findClaim is nil when the token was not used yet.
func (s *Service) findClaim(ctx context.Context, tx convergo.Tx, id string) (*claimRow, error) {
	found, err := selectRows[claimRow](ctx, tx, s.sql.Get("FindClaim"), id)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// fingerprint of what the client ordered: only what he sent, in one form, without the token itself.
func fingerprint(b placeBody) (string, error) {
	b.ClientToken = ""
	text, err := json.Marshal(b)
	if err != nil {
		return "", fmt.Errorf("fingerprint: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}
