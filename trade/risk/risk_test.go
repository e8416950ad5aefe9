package risk_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/risk"
	"github.com/convergo/convergo/trade/tradetest"
)

func newBench(t *testing.T, db tradetest.Database, cfg risk.Config) *tradetest.Bench {
	return db.Bench(t, func(d trade.Deps) (trade.Service, error) { return risk.New(d, cfg) })
}

func placed(b *tradetest.Bench, no, user, currency string, amount int64) {
	b.T.Helper()
	b.MustDeliver(trade.OrderCreated, no, 1, trade.OrderPlaced{OrderNo: no, UserID: user, Currency: currency, GoodsTotal: amount})
}

func decision(b *tradetest.Bench, no string) risk.Decision {
	b.T.Helper()
	return tradetest.Into[risk.Decision](b.T, b.Get(tradetest.Operator(), "/risk/decisions/"+no))
}

func TestAnOrderIsDecidedOnceWithItsReason(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		b := newBench(t, db, risk.Config{MaxAmount: map[string]int64{"CNY": 1000}})
		placed(b, "O-1", "alice", "CNY", 1000)
		placed(b, "O-2", "alice", "CNY", 1001)
		placed(b, "O-3", "alice", "USD", 1_000_000) // no limit for this currency
		if d := decision(b, "O-1"); !d.Approved || d.Rule != risk.RuleNone {
			t.Errorf("O-1: %+v", d)
		}
		if d := decision(b, "O-2"); d.Approved || d.Rule != risk.RuleAmount || d.Reason == "" || !d.DecidedAt.Equal(tradetest.Start()) {
			t.Errorf("O-2: %+v", d)
		}
		if d := decision(b, "O-3"); !d.Approved {
			t.Errorf("O-3: %+v", d)
		}
		// The same fact under another key, and the same event again: nothing more.
		b.MustDeliver(trade.OrderCreated, "O-2", 2, trade.OrderPlaced{OrderNo: "O-2", UserID: "alice", Currency: "CNY", GoodsTotal: 1})
		placed(b, "O-1", "alice", "CNY", 1000)
		if a, r := len(b.Events(trade.RiskApproved)), len(b.Events(trade.RiskRejected)); a != 2 || r != 1 {
			t.Errorf("%d approved, %d rejected; want 2, 1", a, r)
		}
		if d := decision(b, "O-2"); d.Amount != 1001 {
			t.Errorf("the decision about O-2 changed: %+v", d)
		}
		if story := b.Get(tradetest.Operator(), "/risk/story/O-2"); strings.Contains(string(story.Body), risk.RuleAmount) {
			t.Errorf("the story, which the customer may read, names the rule: %s", story.Body)
		}
		if r := tradetest.Payloads[trade.Answer](b, trade.RiskRejected); r[0].OrderNo != "O-2" || r[0].Reason == "" {
			t.Errorf("RiskRejected says %+v", r)
		}
	})
}

func TestADeniedUserIsRefusedUntilAllowedAgain(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		b := newBench(t, db, risk.Config{})
		for range 2 { // again is no fault
			if res := b.Put(tradetest.Operator(), "/risk/denied-users/mallory", map[string]string{"reason": "chargebacks"}); res.Status != http.StatusNoContent {
				t.Fatalf("deny: %d %s", res.Status, res.Body)
			}
		}
		placed(b, "O-1", "mallory", "CNY", 1)
		placed(b, "O-2", "Mallory", "CNY", 1) // another user
		for range 2 {
			if res := b.Do(tradetest.Operator(), http.MethodDelete, "/risk/denied-users/mallory", nil, nil); res.Status != http.StatusNoContent {
				t.Fatalf("allow: %d %s", res.Status, res.Body)
			}
		}
		placed(b, "O-3", "mallory", "CNY", 1)
		for no, want := range map[string]string{"O-1": risk.RuleDenied, "O-2": risk.RuleNone, "O-3": risk.RuleNone} {
			if d := decision(b, no); d.Rule != want {
				t.Errorf("%s: %+v, want %s", no, d, want)
			}
		}
	})
}

func TestAUserMayOrderSoManyTimesInAWindow(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		b := newBench(t, db, risk.Config{MaxOrders: 2, Window: time.Minute})
		var all sync.WaitGroup
		for i := range 6 {
			e := b.Event(trade.OrderCreated, fmt.Sprintf("O-%d", i), 1, trade.OrderPlaced{OrderNo: fmt.Sprintf("O-%d", i), UserID: "alice", Currency: "CNY"})
			all.Go(func() {
				if _, err := b.Deliver(e); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if a, r := len(b.Events(trade.RiskApproved)), len(b.Events(trade.RiskRejected)); a != 2 || r != 4 {
			t.Errorf("%d approved, %d rejected; want 2, 4", a, r)
		}
		placed(b, "B-1", "bob", "CNY", 1)
		b.Clock.Advance(time.Minute)
		placed(b, "A-9", "alice", "CNY", 1)
		for _, no := range []string{"B-1", "A-9"} {
			if d := decision(b, no); !d.Approved {
				t.Errorf("%s: %+v", no, d)
			}
		}
	})
}

func TestOnlyTheOperatorSeesAndSetsRisk(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		b := newBench(t, db, risk.Config{})
		user := tradetest.User("alice")
		for name, res := range map[string]tradetest.Response{
			"deny": b.Put(user, "/risk/denied-users/bob", map[string]string{}), "allow": b.Do(user, http.MethodDelete, "/risk/denied-users/bob", nil, nil),
			"decision": b.Get(user, "/risk/decisions/O-1"), "story": b.Get(user, "/risk/story/O-1"),
		} {
			if res.Status != http.StatusForbidden {
				t.Errorf("%s: %d %s", name, res.Status, res.Body)
			}
		}
		if res := b.Get(tradetest.Operator(), "/risk/decisions/NONE"); res.Status != http.StatusNotFound {
			t.Errorf("unknown: %d %s", res.Status, res.Body)
		}
		for _, body := range []any{`{"reason":"a","Reason":"b"}`, `{"why":1}`, map[string]string{"reason": "a\nb"}} {
			if res := b.Put(tradetest.Operator(), "/risk/denied-users/bob", body); res.Status != 400 && res.Status != 422 {
				t.Errorf("%v: %d %s", body, res.Status, res.Body)
			}
		}
		if n := b.Int("SELECT COUNT(*) FROM denied_user"); n != 0 {
			t.Errorf("%d users are denied", n)
		}
	})
}
