package trade_test

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"net/http"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/sqltext"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/tradetest"
)

// bare is a service without anything of its own but one route.
type bare struct{ deps trade.Deps }

func (bare) Name() string                                    { return "bare" }
func (bare) Migrations() fs.FS                               { return nil }
func (bare) Prefixes() []string                              { return []string{"/bare"} }
func (bare) Handlers() map[string]inbox.Handler[convergo.Tx] { return nil }
func (bare) Calls() map[string]outside.Handler[convergo.Tx]  { return nil }

func (s bare) Routes(api huma.API) {
	huma.Register(api, huma.Operation{OperationID: "effect", Method: http.MethodPost, Path: "/bare/effects/{key}"},
		func(ctx context.Context, in *struct {
			Key string `path:"key"`
		}) (*struct{}, error) {
			_, err := trade.RecordEffect(ctx, trade.TxOf(ctx), sqltext.SQLite, trade.Effect{Key: convergo.Key(in.Key), OrderNo: "O-1", Kind: "test"})
			switch {
			case err != nil:
				return nil, err
			case strings.HasPrefix(in.Key, "refuse"):
				return nil, trade.Conflict("path.key", "refused", "do not")
			case strings.HasPrefix(in.Key, "fail"):
				return nil, errors.New("secret: dial tcp 10.0.0.1")
			}
			return nil, nil
		})
}

func newBench(t *testing.T) *tradetest.Bench {
	return tradetest.New(t, func(d trade.Deps) (trade.Service, error) { return bare{d}, nil })
}

func record(b *tradetest.Bench, effects ...trade.Effect) (fresh []bool) {
	b.Update(func(ctx context.Context, tx convergo.Tx) error {
		for _, e := range effects {
			e.At = b.Clock.Now()
			ok, err := trade.RecordEffect(ctx, tx, sqltext.SQLite, e)
			if err != nil {
				return err
			}
			fresh = append(fresh, ok)
		}
		return nil
	})
	return fresh
}

func TestAnEffectHappensOnceAndIsUndoneOnce(t *testing.T) {
	b := newBench(t)
	got := record(b,
		trade.Effect{Key: "ORDER_POINT:O-1", OrderNo: "O-1", Kind: "points.grant", Cause: "OrderPaid:O-1:v3", Detail: "88"},
		trade.Effect{Key: "ORDER_POINT:O-1", OrderNo: "O-1", Kind: "points.grant", Cause: "another"},
		trade.Effect{Key: "POINT_BACK:O-1", OrderNo: "O-1", Kind: "points.reverse", Reverses: "ORDER_POINT:O-1"},
		trade.Effect{Key: "POINT_BACK_AGAIN:O-1", OrderNo: "O-1", Kind: "points.reverse", Reverses: "ORDER_POINT:O-1"},
		trade.Effect{Key: "ORDER_POINT:o-1", OrderNo: "o-1", Kind: "points.grant"}, // keys are bytes
		trade.Effect{Key: "ORDER_POINT:O-2", OrderNo: "O-2", Kind: "points.grant"},
	)
	for i, want := range []bool{true, false, true, false, true, true} {
		if got[i] != want {
			t.Errorf("effect %d: fresh %t, want %t", i, got[i], want)
		}
	}
	b.Update(func(ctx context.Context, tx convergo.Tx) error {
		e, err := trade.FindEffect(ctx, tx, sqltext.SQLite, "ORDER_POINT:O-1")
		if err != nil || e == nil || e.Detail != "88" || e.Cause != "OrderPaid:O-1:v3" || !e.At.Equal(tradetest.Start()) {
			t.Errorf("found %+v, %v", e, err)
		}
		if e, err := trade.FindEffect(ctx, tx, sqltext.SQLite, "NONE"); err != nil || e != nil {
			t.Errorf("found %+v, %v", e, err)
		}
		c, err := trade.CompensationOf(ctx, tx, sqltext.SQLite, "ORDER_POINT:O-1")
		if err != nil || c == nil || c.Key != "POINT_BACK:O-1" {
			t.Errorf("compensation %+v, %v", c, err)
		}
		all, err := trade.EffectsOf(ctx, tx, sqltext.SQLite, "O-1")
		if err != nil || len(all) != 2 {
			t.Errorf("effects of O-1: %+v, %v", all, err)
		}
		for _, bad := range []trade.Effect{{Key: ""}, {Key: "a "}, {Key: "a", Kind: strings.Repeat("k", 65)}, {Key: "a", Detail: strings.Repeat("d", 2001)}} {
			if _, err := trade.RecordEffect(ctx, tx, sqltext.SQLite, bad); convergo.VerdictOf(err) != convergo.Park {
				t.Errorf("%.20v: %v", bad, err)
			}
		}
		return nil
	})
}

func TestARefusedOrFailedRequestLeavesNoEffect(t *testing.T) {
	b := newBench(t)
	alice := tradetest.User("alice")
	if res := b.Post(alice, "/bare/effects/good", nil); res.Status != http.StatusNoContent {
		t.Errorf("good: %d %s", res.Status, res.Body)
	}
	if res := b.PostKey(alice, "/bare/effects/refuse", "k", nil); res.Status != http.StatusConflict || res.Problem().Remedy != "do not" {
		t.Errorf("refused: %d %s", res.Status, res.Body)
	}
	res := b.PostKey(alice, "/bare/effects/fail", "k", nil)
	if res.Status != http.StatusInternalServerError || strings.Contains(string(res.Body), "10.0.0.1") || res.Problem().Remedy == "" {
		t.Errorf("failed: %d %s", res.Status, res.Body)
	}
	if n := b.Int("SELECT COUNT(*) FROM effect"); n != 1 {
		t.Errorf("%d effects", n)
	}
}

func TestMethodsAndPathsThatAreNotThereWriteNothing(t *testing.T) {
	b := newBench(t)
	if res := b.Do(tradetest.User("a"), http.MethodPut, "/bare/effects/x", nil, nil); res.Status != http.StatusMethodNotAllowed {
		t.Errorf("PUT: %d", res.Status)
	}
	if res := b.Get(tradetest.User("a"), "/nothing"); res.Status != http.StatusNotFound {
		t.Errorf("GET: %d", res.Status)
	}
}

func TestBothDialectsHaveTheStatements(t *testing.T) {
	for d, clause := range map[sqltext.Dialect]string{sqltext.Postgres: "ON CONFLICT DO NOTHING", sqltext.MySQL: "ON DUPLICATE KEY"} {
		tx := &recorder{}
		_, err := trade.RecordEffect(t.Context(), tx, d, trade.Effect{Key: "k"})
		if err == nil || !strings.Contains(tx.query, clause) {
			t.Errorf("dialect %d: %q, %v", d, tx.query, err)
		}
	}
}

// recorder is a transaction that only notes what it is asked.
type recorder struct {
	convergo.Tx
	query string
}

func (r *recorder) ExecContext(_ context.Context, query string, _ ...any) (sql.Result, error) {
	r.query = query
	return nil, errors.New("only noted")
}
