package notification_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/sqlite"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/channel"
	"github.com/convergo/convergo/trade/notification"
	"github.com/convergo/convergo/trade/simulate"
	"github.com/convergo/convergo/trade/tradetest"
)

type rig struct {
	*tradetest.Bench
	world *simulate.World
	wire  *wire
}

// wire is the messenger's client with faults between it and the service.
type wire struct {
	notification.Messenger
	mu     sync.Mutex
	sent   []string // keys that left for the messenger
	onSend func(n int) error
}

func (w *wire) Send(ctx context.Context, m notification.Message) (string, error) {
	w.mu.Lock()
	w.sent = append(w.sent, m.Key)
	n, hook := len(w.sent), w.onSend
	w.mu.Unlock()
	if hook != nil {
		if err := hook(n); err != nil {
			return "", err
		}
	}
	return w.Messenger.Send(ctx, m)
}

func newRig(t *testing.T, db tradetest.Database, faults simulate.Faults) *rig {
	t.Helper()
	r := &rig{wire: &wire{}}
	outside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { r.world.Handler().ServeHTTP(w, q) }))
	t.Cleanup(outside.Close)
	r.wire.Messenger = &notification.HTTPMessenger{BaseURL: outside.URL}
	r.Bench = db.Bench(t, func(d trade.Deps) (trade.Service, error) {
		return notification.New(d, notification.Config{Messenger: r.wire})
	})
	store, err := sqlite.Open(context.Background(), filepath.Join(t.TempDir(), "simulate.db"), sqlite.Options{Relaxed: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	if err := store.Migrate(context.Background(), "simulate", simulate.Migrations()); err != nil {
		t.Fatal(err)
	}
	r.world, err = simulate.New(store, simulate.Config{
		Merchant: "m-1", Secrets: []channel.Secret{channel.NewSecret()}, NotifyURL: "http://nobody.invalid/", Now: r.Clock.Now, Faults: faults,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) messages() int64 {
	r.T.Helper()
	s, err := r.world.Stats(context.Background())
	if err != nil {
		r.T.Fatal(err)
	}
	return s.Messages
}

type told struct {
	Notifications []notification.Notification `json:"notifications"`
}

func TestEachOccasionIsToldOnce(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db, simulate.Faults{})
		for version := int64(3); version <= 4; version++ { // each event under two keys
			r.MustDeliver(trade.OrderPaid, "O-1", version, trade.Paid{OrderNo: "O-1", UserID: "u-1", Payable: 1990, Currency: "CNY"})
			r.MustDeliver(trade.OrderShipped, "O-1", version, trade.Moved{OrderNo: "O-1", UserID: "u-1"})
			r.MustDeliver(trade.OrderCanceled, "O-2", version, trade.Canceled{OrderNo: "O-2", UserID: "u-1", Reason: "timeout"})
			for _, no := range []string{"O-1-R1", "O-1-R2"} {
				e := r.Event(trade.OrderRefunded, "O-1", 0, trade.Refund{OrderNo: "O-1", UserID: "u-1", RefundNo: no, Cash: 5, Currency: "CNY"})
				e.Key = convergo.Key("OrderRefunded:" + no + ":" + string('a'+rune(version)))
				if _, err := r.Deliver(e); err != nil {
					t.Fatal(err)
				}
			}
		}
		r.RunCalls()
		if r.messages() != 5 || len(r.wire.sent) != 5 {
			t.Errorf("%d messages, sent %v", r.messages(), r.wire.sent)
		}
		answer := r.Get(tradetest.User("u-1"), "/notifications/O-1")
		list := tradetest.Into[told](t, answer).Notifications
		if len(list) != 4 {
			t.Fatalf("%s", answer.Body)
		}
		keys := map[string]string{}
		for _, n := range list {
			keys[n.Key] = n.Text
			if n.State != notification.Sent {
				t.Errorf("%+v", n)
			}
		}
		if text := keys["NOTIFY:OrderPaid:O-1"]; !strings.Contains(text, "19.90 CNY") {
			t.Errorf("paid: %q", text)
		}
		if text := keys["NOTIFY:OrderRefunded:O-1-R2"]; !strings.Contains(text, "0.05 CNY") {
			t.Errorf("refunded: %q", text)
		}
		if n := r.Int("SELECT COUNT(*) FROM effect WHERE kind = 'notification.send'"); n != 5 {
			t.Errorf("%d effects", n)
		}
	})
}

func TestAProviderThatAcceptsAndThenTimesOutIsAskedAndTellsOnce(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db, simulate.Faults{LostAnswers: 1000})
		r.MustDeliver(trade.OrderShipped, "O-1", 3, trade.Moved{OrderNo: "O-1", UserID: "u-1"})
		r.RunCalls()
		if n := r.Int("SELECT COUNT(*) FROM notification WHERE state = 'PENDING'"); n != 1 {
			t.Errorf("%d pending after the time-out", n)
		}
		r.Clock.Advance(time.Second)
		r.RunCalls()
		if n := r.Int("SELECT COUNT(*) FROM notification WHERE state = 'SENT' AND provider_id <> ''"); n != 1 {
			t.Errorf("%d sent", n)
		}
		if r.messages() != 1 || len(r.wire.sent) != 1 {
			t.Errorf("%d messages, sent %v", r.messages(), r.wire.sent)
		}
	})
}

func TestAProviderThatFailsIsTriedAgainWithTheSameKey(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db, simulate.Faults{})
		r.wire.onSend = func(n int) error {
			if n < 3 {
				return errors.New("503")
			}
			return nil
		}
		r.MustDeliver(trade.OrderShipped, "O-1", 3, trade.Moved{OrderNo: "O-1", UserID: "u-1"})
		for range 5 {
			r.RunCalls()
			r.Clock.Advance(10 * time.Second)
		}
		if got := strings.Join(r.wire.sent, " "); got != strings.TrimSpace(strings.Repeat("NOTIFY:OrderShipped:O-1 ", 3)) || r.messages() != 1 {
			t.Errorf("sent %q, %d messages", got, r.messages())
		}
	})
}

func TestAMessageThatIsRefusedForGoodIsAPersonsCase(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db, simulate.Faults{})
		r.wire.onSend = func(int) error { return convergo.Permanent(errors.New("no such number")) }
		r.MustDeliver(trade.OrderShipped, "O-1", 3, trade.Moved{OrderNo: "O-1", UserID: "u-1"})
		r.RunCalls()
		list := tradetest.Into[told](t, r.Get(tradetest.Operator(), "/notifications/O-1")).Notifications
		if len(list) != 1 || list[0].State != notification.Failed || !strings.Contains(list[0].Reason, "no such number") {
			t.Errorf("%+v", list)
		}
		if got := r.Get(tradetest.User("u-1"), "/notifications/O-1"); strings.Contains(string(got.Body), "no such number") {
			t.Errorf("the customer reads what the provider told the shop: %s", got.Body)
		}
	})
}

func TestOnlyTheOwnerReadsHisMessages(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db, simulate.Faults{})
		r.MustDeliver(trade.OrderShipped, "O-1", 3, trade.Moved{OrderNo: "O-1", UserID: "u-1"})
		his, none := r.Get(tradetest.User("u-2"), "/notifications/O-1"), r.Get(tradetest.User("u-2"), "/notifications/O-none")
		if his.Status != http.StatusOK || strings.Contains(string(his.Body), "O-1") || his.Status != none.Status || string(his.Body) != string(none.Body) {
			t.Errorf("another's order: %d %s; none at all: %d %s", his.Status, his.Body, none.Status, none.Body)
		}
		if got := tradetest.Into[told](t, r.Get(tradetest.User("u-1"), "/notifications/O-1")).Notifications; len(got) != 1 {
			t.Errorf("the owner reads %+v", got)
		}
	})
}

func TestAnEventWithoutAUserIsADeadLetter(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db, simulate.Faults{})
		_, err := r.Deliver(r.Event(trade.OrderShipped, "O-1", 3, trade.Moved{OrderNo: "O-1"}))
		if convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("%v", err)
		}
	})
}
