package trade

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Kinds of a Principal.
const (
	KindOperator = "operator" // runs the shop: products, stock, coupons, sessions, dead letters
	KindUser     = "user"     // may touch only what is his
)

// Principal is who makes a request.
type Principal struct {
	Kind string // KindOperator or KindUser
	ID   string // the user's id; "operator" for an operator
}

// String is "user:u-17".
func (p Principal) String() string { return p.Kind + ":" + p.ID }

type principalKey struct{}

// WithPrincipal is ctx as Authenticate makes it.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalOf tells who makes the request; ok is false when nobody was authenticated (a public path).
func PrincipalOf(ctx context.Context) (p Principal, ok bool) {
	p, ok = ctx.Value(principalKey{}).(Principal)
	return p, ok
}

// MinSecret is the shortest secret that tokens may be signed with, in bytes.
const MinSecret = 16

// Reasons why a signed token is refused.
var (
	ErrTokenForged  = errors.New("token is not one of ours")
	ErrTokenExpired = errors.New("token has expired")
)

const sessionPrefix = "cs1"

type sessionClaims struct {
	User    string `json:"u"`
	Expires int64  `json:"e"` // microseconds
}

// MintSession makes the bearer token of a user's session: "cs1.{claims}.{HMAC-SHA256}", both base64url.
func MintSession(secret []byte, userID string, expires time.Time) (string, error) {
	if err := CheckUserID(userID); err != nil {
		return "", err
	}
	return SignToken(secret, sessionPrefix, sessionClaims{User: userID, Expires: expires.UnixMicro()})
}

// ReadSession is the user of a session token. It fails with ErrTokenForged or ErrTokenExpired, wrapped.
func ReadSession(secret []byte, token string, now time.Time) (userID string, err error) {
	var c sessionClaims
	if err := OpenToken(secret, sessionPrefix, token, &c); err != nil {
		return "", err
	}
	if now.UnixMicro() >= c.Expires {
		return "", fmt.Errorf("session of %s: %w", c.User, ErrTokenExpired)
	}
	return c.User, nil
}

// SignToken is "{prefix}.{claims as JSON}.{HMAC-SHA256}", the latter two in base64url without padding. The prefix is part of
// what is signed, so that a token of one purpose is none of another, even with one secret.
func SignToken(secret []byte, prefix string, claims any) (string, error) {
	if len(secret) < MinSecret {
		return "", fmt.Errorf("the token secret has %d bytes; give it at least %d", len(secret), MinSecret)
	}
	body, err := json.Marshal(claims)
	if err != nil {
		return "", fmt.Errorf("token claims: %w", err)
	}
	text := prefix + "." + base64.RawURLEncoding.EncodeToString(body)
	return text + "." + base64.RawURLEncoding.EncodeToString(tokenMAC(secret, text)), nil
}

// OpenToken checks the signature, in constant time, and reads the claims. Every failure wraps ErrTokenForged. Expiry is
// the caller's to check.
func OpenToken(secret []byte, prefix, token string, claims any) error {
	const longest = 4096
	cut := strings.LastIndexByte(token, '.')
	if len(secret) < MinSecret || len(token) > longest || cut < 0 || !strings.HasPrefix(token, prefix+".") || cut < len(prefix)+1 {
		return fmt.Errorf("not a %s token: %w", prefix, ErrTokenForged)
	}
	mac, err := base64.RawURLEncoding.Strict().DecodeString(token[cut+1:])
	if err != nil || !hmac.Equal(mac, tokenMAC(secret, token[:cut])) {
		return fmt.Errorf("signature does not fit: %w", ErrTokenForged)
	}
	body, err := base64.RawURLEncoding.Strict().DecodeString(token[len(prefix)+1 : cut])
	if err != nil {
		return fmt.Errorf("claims: %w", ErrTokenForged)
	}
	if err := json.Unmarshal(body, claims); err != nil {
		return fmt.Errorf("claims: %w", ErrTokenForged)
	}
	return nil
}

func tokenMAC(secret []byte, text string) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// AuthConfig says whom Authenticate knows.
type AuthConfig struct {
	OperatorKey string                   // the operator's bearer token; empty means that there is no operator
	Secret      []byte                   // signs user sessions; at least MinSecret bytes
	Public      func(*http.Request) bool // requests that need nobody, such as a payment notice, which carries its own signature; default none
	Now         func() time.Time         // default time.Now
}

// Authenticate puts the Principal of the request's "Authorization: Bearer …" into its context. A request without one, or
// with one that is not valid, is answered with 401 and a problem that says which; a public one passes either way.
func Authenticate(cfg AuthConfig) func(http.Handler) http.Handler {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p, err := cfg.principal(r)
			switch {
			case err == nil:
				next.ServeHTTP(w, r.WithContext(WithPrincipal(r.Context(), p)))
			case cfg.Public != nil && cfg.Public(r):
				next.ServeHTTP(w, r)
			default:
				w.Header().Set("WWW-Authenticate", "Bearer")
				WriteProblem(w, NewProblem(http.StatusUnauthorized, "header.Authorization", err.Error(),
					"send 'Authorization: Bearer TOKEN' with the operator key or a session from POST /users/{id}/sessions"))
			}
		})
	}
}

func (cfg AuthConfig) principal(r *http.Request) (Principal, error) {
	values := r.Header.Values("Authorization")
	if len(values) == 0 {
		return Principal{}, errors.New("the Authorization header is missing")
	}
	if len(values) > 1 {
		return Principal{}, fmt.Errorf("there are %d Authorization headers, not one", len(values))
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return Principal{}, errors.New("the Authorization header is not 'Bearer TOKEN'")
	}
	if strings.HasPrefix(token, sessionPrefix+".") {
		user, err := ReadSession(cfg.Secret, token, cfg.Now())
		return Principal{KindUser, user}, err
	}
	// Digests have one length, so that the comparison tells nothing about the key's.
	given, want := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(cfg.OperatorKey))
	if cfg.OperatorKey == "" || subtle.ConstantTimeCompare(given[:], want[:]) != 1 {
		return Principal{}, errors.New("the bearer token is not known")
	}
	return Principal{KindOperator, "operator"}, nil
}

// RequireOperator is nil for an operator, else a 401 or 403 for huma.
func RequireOperator(ctx context.Context) error {
	p, ok := PrincipalOf(ctx)
	switch {
	case !ok:
		return errNobody()
	case p.Kind != KindOperator:
		return NewProblem(http.StatusForbidden, "header.Authorization", "this operation is the operator's", "use the operator key")
	}
	return nil
}

// RequireUser is the user who makes the request, else a 401 or 403 for huma.
func RequireUser(ctx context.Context) (Principal, error) {
	p, ok := PrincipalOf(ctx)
	switch {
	case !ok:
		return p, errNobody()
	case p.Kind != KindUser:
		return p, NewProblem(http.StatusForbidden, "header.Authorization", "this operation is a user's, and the operator key stands for no user",
			"use a session from POST /users/{id}/sessions")
	}
	return p, nil
}

// RequireOwner is nil for an operator and for the user himself, else a 401 or 403 for huma.
func RequireOwner(ctx context.Context, userID string) error {
	p, ok := PrincipalOf(ctx)
	switch {
	case !ok:
		return errNobody()
	case p.Kind != KindOperator && p.ID != userID:
		return NewProblem(http.StatusForbidden, "header.Authorization", "this belongs to another user", "use the session of its owner")
	}
	return nil
}

// Owns tells whether the one who makes the request may see what belongs to userID. Where even the existence of a thing is
// nobody else's business, answer NotFound instead of RequireOwner's error.
func Owns(ctx context.Context, userID string) bool { return RequireOwner(ctx, userID) == nil }

func errNobody() error {
	return NewProblem(http.StatusUnauthorized, "header.Authorization", "nobody is logged in",
		"send 'Authorization: Bearer TOKEN' with the operator key or a session from POST /users/{id}/sessions")
}
