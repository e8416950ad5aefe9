package points

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/georgysavva/scany/v2/sqlscan"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
)

const (
	newest = 100 // entries in an answer
	maxKey = 200 // bytes of a grant's key, so that it is a key also with its prefix
)

// Grant is the body of POST /points/grants.
type Grant struct {
	User   string `json:"user" minLength:"1" maxLength:"64"`
	Points int64  `json:"points" minimum:"1" maximum:"1000000000"`
	Key    string `json:"key" minLength:"1" maxLength:"200" doc:"identity, such as campaign and customer; a second grant with it gives nothing"`
}

// Entry is one change of a customer's points.
type Entry struct {
	Key     string    `json:"key"`
	Kind    string    `json:"kind" enum:"GRANT,ORDER_POINT,POINT_LOCK,POINT_SPEND,POINT_UNLOCK,POINT_BACK,POINT_REVERSAL"`
	Points  int64     `json:"points" doc:"by how much balance - debt changed"`
	Locked  int64     `json:"locked" doc:"by how much locked changed"`
	OrderNo string    `json:"order_no,omitempty"`
	Cause   string    `json:"cause"`
	At      time.Time `json:"at"`
}

// Account is a customer's points, and the newest 100 of their changes.
type Account struct {
	User      string  `json:"user"`
	Balance   int64   `json:"balance" doc:"locked ones included"`
	Locked    int64   `json:"locked" doc:"held by orders that are not paid yet"`
	Available int64   `json:"available" doc:"balance - locked"`
	Debt      int64   `json:"debt" doc:"granted points that were spent before they had to be taken back; later credits pay it"`
	Entries   []Entry `json:"entries"`
}

// Routes registers the operations on points.
func (s *Service) Routes(api huma.API) {
	tags := []string{Name}
	huma.Register(api, huma.Operation{OperationID: "grant-points", Method: http.MethodPost, Path: "/points/grants", Tags: tags,
		Summary: "Give points to a customer", DefaultStatus: http.StatusCreated}, s.grant)
	huma.Register(api, huma.Operation{OperationID: "get-points", Method: http.MethodGet, Path: "/points/{user}", Tags: tags,
		Summary: "Points of a customer"}, s.get)
	trade.RegisterStory(api, s.Deps, Name)
}

type accountOutput struct{ Body Account }

func (s *Service) grant(ctx context.Context, in *struct{ Body Grant }) (*accountOutput, error) {
	if err := trade.RequireOperator(ctx); err != nil {
		return nil, err
	}
	g := in.Body
	if err := trade.CheckUserID(g.User); err != nil {
		return nil, trade.Invalid("body.user", err.Error(), "use the id of POST /users/{id}/sessions")
	}
	if g.Points < 1 || g.Points > 1_000_000_000 {
		return nil, trade.Invalid("body.points", fmt.Sprintf("points %d are not between 1 and 1000000000", g.Points), "give fewer")
	}
	if err := convergo.Key(g.Key).Validate(); err != nil || len(g.Key) > maxKey {
		return nil, trade.Invalid("body.key", fmt.Sprintf("the key is no text of 1 to %d bytes without blanks around it", maxKey),
			"use a short text such as spring-campaign:u-17")
	}
	tx := trade.TxOf(ctx)
	if err := s.Grant(ctx, tx, g, trade.RequestKey(ctx)); err != nil {
		return nil, err
	}
	return s.show(ctx, tx, g.User)
}

// Grant gives points to a customer, once per g.Key. The error is a trade.Problem when the key was used for another grant.
// The ledger is not told: a grant has no order and no currency until its points are spent.
func (s *Service) Grant(ctx context.Context, tx convergo.Tx, g Grant, cause convergo.Key) error {
	key := grantKind + ":" + g.Key
	fresh, err := s.record(ctx, tx, entry{key: key, kind: grantKind, userID: g.User, points: g.Points, cause: cause})
	if err != nil {
		return err
	}
	if !fresh {
		var before []entryRow
		if err := sqlscan.Select(ctx, tx, &before, s.sql.Get("FindEntry"), key); err != nil {
			return fmt.Errorf("find grant %s: %w", key, err)
		}
		if len(before) != 1 || before[0].UserID != g.User || before[0].Points != g.Points {
			return trade.Conflict("body.key", fmt.Sprintf("key %q was used for another grant", g.Key), "use another key for another grant")
		}
		return nil
	}
	if err := s.credit(ctx, tx, g.User, g.Points); err != nil {
		if convergo.VerdictOf(err) == convergo.Park {
			return trade.Invalid("body.points", err.Error(), "give fewer")
		}
		return err
	}
	return nil
}

func (s *Service) get(ctx context.Context, in *struct {
	User string `path:"user" maxLength:"64"`
}) (out *accountOutput, err error) {
	if err := trade.RequireOwner(ctx, in.User); err != nil {
		return nil, err
	}
	err = s.DB.View(ctx, func(ctx context.Context, tx convergo.Tx) (err error) {
		out, err = s.show(ctx, tx, in.User)
		return err
	})
	return out, err
}

type entryRow struct {
	EntryKey string
	UserID   string
	Kind     string
	Points   int64
	Locked   int64
	OrderNo  string
	Cause    string
	At       int64
}

// show is the customer's account; one who never had a point has 0.
func (s *Service) show(ctx context.Context, tx convergo.Tx, userID string) (*accountOutput, error) {
	out := &accountOutput{Account{User: userID, Entries: []Entry{}}}
	a, err := s.account(ctx, tx, userID)
	if err != nil || a == nil {
		return out, err
	}
	out.Body.Balance, out.Body.Locked, out.Body.Available, out.Body.Debt = a.balance, a.locked, a.balance-a.locked, a.debt
	var rows []entryRow
	if err := sqlscan.Select(ctx, tx, &rows, s.sql.Get("EntriesOfUser"), userID, newest); err != nil {
		return nil, fmt.Errorf("entries of %s: %w", userID, err)
	}
	for _, r := range rows {
		out.Body.Entries = append(out.Body.Entries, Entry{r.EntryKey, r.Kind, r.Points, r.Locked, r.OrderNo, r.Cause, convergo.FromMicros(r.At)})
	}
	return out, nil
}
