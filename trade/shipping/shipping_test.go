package shipping_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/sqlite"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/channel"
	"github.com/convergo/convergo/trade/shipping"
	"github.com/convergo/convergo/trade/simulate"
	"github.com/convergo/convergo/trade/tradetest"
)

// rig is the shipping service and the simulated carrier.
type rig struct {
	*tradetest.Bench
	world *simulate.World
	wire  *wire
}

// wire is the carrier's client with faults between it and the service.
type wire struct {
	shipping.Carrier
	mu       sync.Mutex
	booked   []string // keys that left for the carrier
	cancels  int
	onBook   func(n int) (before, after error)
	onCancel error
}

func (w *wire) Book(ctx context.Context, r shipping.BookingRequest) (shipping.Tracking, error) {
	w.mu.Lock()
	w.booked = append(w.booked, r.Key)
	n, hook := len(w.booked), w.onBook
	w.mu.Unlock()
	var before, after error
	if hook != nil {
		before, after = hook(n)
	}
	if before != nil {
		return shipping.Tracking{}, before
	}
	t, err := w.Carrier.Book(ctx, r)
	return t, errors.Join(err, after)
}

func (w *wire) Cancel(ctx context.Context, key string) (bool, error) {
	w.mu.Lock()
	w.cancels++
	w.mu.Unlock()
	if w.onCancel != nil {
		return false, w.onCancel
	}
	return w.Carrier.Cancel(ctx, key)
}

func newRig(t *testing.T, db tradetest.Database) *rig {
	t.Helper()
	r := &rig{wire: &wire{}}
	outside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { r.world.Handler().ServeHTTP(w, q) }))
	t.Cleanup(outside.Close)
	r.wire.Carrier = &shipping.HTTPCarrier{BaseURL: outside.URL}
	r.Bench = db.Bench(t, func(d trade.Deps) (trade.Service, error) {
		return shipping.New(d, shipping.Config{Carrier: r.wire, TrackEvery: time.Minute})
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
		Merchant: "m-1", Secrets: []channel.Secret{channel.NewSecret()}, NotifyURL: "http://nobody.invalid/", Now: r.Clock.Now, Transit: 10 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) pay(orderNo string) {
	r.T.Helper()
	r.MustDeliver(trade.OrderPaid, orderNo, 3, trade.Paid{
		OrderNo: orderNo, UserID: "u-1", Currency: "CNY", Lines: []trade.Line{{LineNo: 1, SKU: "S1", Quantity: 2}, {LineNo: 2, SKU: "S2", Quantity: 1}},
	})
}

func (r *rig) refund(orderNo string, full bool) {
	r.T.Helper()
	r.MustDeliver(trade.OrderRefunded, orderNo, 7, trade.Refund{OrderNo: orderNo, UserID: "u-1", RefundNo: orderNo + "-R1", Full: full})
}

func (r *rig) want(orderNo, state string, events map[string]int) {
	r.T.Helper()
	answer := r.Get(tradetest.User("u-1"), "/shipments/"+orderNo)
	if got := tradetest.Into[shipping.Shipment](r.T, answer); got.State != state {
		r.T.Errorf("shipment of %s: %d %s, want %s", orderNo, answer.Status, answer.Body, state)
	}
	for eventType, n := range events {
		if got := len(r.Events(eventType)); got != n {
			r.T.Errorf("%d %s, want %d", got, eventType, n)
		}
	}
}

// runUntil makes outgoing calls until the query counts one row; some calls may stay due, which RunCalls does not allow.
func (r *rig) runUntil(query string) {
	r.T.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Deps.Calls.Run(ctx) }()
	deadline := time.Now().Add(20 * time.Second)
	for r.Int(query) != 1 {
		if time.Now().After(deadline) {
			r.T.Error("it never came to be")
			break
		}
	}
	stop()
	if err := <-ended; err != nil {
		r.T.Error(err)
	}
}

func (r *rig) bookings() int64 {
	r.T.Helper()
	s, err := r.world.Stats(context.Background())
	if err != nil {
		r.T.Fatal(err)
	}
	return s.Bookings
}

func TestAPaidOrderIsShippedOnceAndTrackedUntilItArrives(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.pay("O-1")
		again := r.Event(trade.OrderPaid, "O-1", 4, trade.Paid{OrderNo: "O-1", UserID: "u-1", Lines: []trade.Line{{Quantity: 3}}})
		if _, err := r.Deliver(again); err != nil { // told twice, under another key
			t.Fatal(err)
		}
		r.want("O-1", "BOOKING", nil)
		r.RunCalls()
		r.want("O-1", "DISPATCHED", map[string]int{trade.ShipmentDispatched: 1, trade.ShipmentDelivered: 0})
		for range 9 {
			r.Clock.Advance(time.Minute)
			r.RunCalls()
		}
		r.want("O-1", "DISPATCHED", map[string]int{trade.ShipmentDelivered: 0})
		r.Clock.Advance(time.Minute)
		r.RunCalls()
		r.want("O-1", "DELIVERED", map[string]int{trade.ShipmentDispatched: 1, trade.ShipmentDelivered: 1})
		if r.bookings() != 1 || len(r.wire.booked) != 1 {
			t.Errorf("%d bookings, %v sent", r.bookings(), r.wire.booked)
		}
		if n := r.Int("SELECT COUNT(*) FROM effect WHERE effect_key = 'SHIP:O-1'"); n != 1 {
			t.Errorf("%d effects", n)
		}
		if n := r.Int("SELECT COUNT(*) FROM outside_call WHERE state < 2"); n != 0 {
			t.Errorf("%d calls are still to be made", n)
		}
	})
}

func TestABookingWhoseAnswerWasLostIsFoundAndNotMadeAgain(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.wire.onBook = func(n int) (error, error) {
			if n == 1 {
				return nil, errors.New("time-out")
			}
			return nil, nil
		}
		r.pay("O-1")
		r.RunCalls()
		r.want("O-1", "BOOKING", nil)
		r.Clock.Advance(time.Second)
		r.RunCalls()
		r.want("O-1", "DISPATCHED", map[string]int{trade.ShipmentDispatched: 1})
		if r.bookings() != 1 || len(r.wire.booked) != 1 {
			t.Errorf("%d bookings, %v sent", r.bookings(), r.wire.booked)
		}
	})
}

func TestAFullRefundBeforeTheParcelLeavesStopsIt(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.pay("O-1")
		r.refund("O-1", true)
		r.want("O-1", "CANCELING", nil)
		r.RunCalls() // books, then cancels: one after another, because they are one group
		r.want("O-1", "CANCELED", map[string]int{trade.ShipmentDispatched: 0, trade.ShipmentCanceled: 1})
		if n := r.Int("SELECT COUNT(*) FROM effect WHERE reverses = 'SHIP:O-1'"); n != 1 {
			t.Errorf("%d compensations", n)
		}
		r.refund("O-1", true)
		r.Clock.Advance(time.Hour)
		r.RunCalls()
		r.want("O-1", "CANCELED", map[string]int{trade.ShipmentDispatched: 0, trade.ShipmentCanceled: 1, trade.ShipmentDelivered: 0})
	})
}

func TestAFullRefundThatIsOnItsWayStopsTheParcelBeforeTheMoneyIsBack(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		for _, no := range []string{"O-1", "O-2"} {
			r.pay(no)
		}
		ask := func(no string, full bool) {
			r.MustDeliver(trade.RefundApproved, no, 5, trade.Refund{OrderNo: no, UserID: "u-1", RefundNo: no + "-R1", Full: full, Cash: 100})
		}
		ask("O-1", true) // the channel takes its time
		ask("O-2", false)
		r.RunCalls()
		r.want("O-1", "CANCELED", map[string]int{trade.ShipmentCanceled: 1})
		r.want("O-2", "DISPATCHED", map[string]int{trade.ShipmentDispatched: 1})
		r.refund("O-1", true) // the money is back: nothing more to do
		r.RunCalls()
		r.want("O-1", "CANCELED", map[string]int{trade.ShipmentCanceled: 1})
		if n := r.Int("SELECT COUNT(*) FROM effect WHERE reverses = 'SHIP:O-1'"); n != 1 {
			t.Errorf("the shipment was undone %d times", n)
		}
	})
}

func TestTheCarrierIsAskedToStopOnlyWhatItIsKnownToHave(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.wire.onBook = func(n int) (error, error) {
			if n == 1 {
				return nil, errors.New("time-out")
			}
			return nil, nil
		}
		r.pay("O-1")
		r.refund("O-1", true)
		r.runUntil("SELECT COUNT(*) FROM outside_call WHERE kind = 'carrier.book' AND state = 0 AND attempts = 1")
		if r.wire.cancels != 0 {
			t.Errorf("%d cancellations while the booking is unknown", r.wire.cancels)
		}
		r.Clock.Advance(time.Second)
		r.RunCalls()
		r.want("O-1", "CANCELED", map[string]int{trade.ShipmentDispatched: 0, trade.ShipmentCanceled: 1})
	})
}

func TestABookingThatSomebodyElseCanceledIsAPersonsCase(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		if _, err := r.wire.Carrier.Cancel(t.Context(), "SHIP:O-1"); err != nil {
			t.Fatal(err)
		}
		r.wire.onBook = func(int) (error, error) { return errors.New("time-out"), nil }
		r.pay("O-1")
		r.RunCalls()
		r.Clock.Advance(time.Second)
		r.RunCalls()
		r.want("O-1", "FAILED", map[string]int{trade.ShipmentDispatched: 0})
	})
}

func TestAParcelThatTheCarrierGivesUpOnItsWayIsAPersonsCaseAndNotTrackedForEver(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.pay("O-1")
		r.RunCalls()
		r.want("O-1", "DISPATCHED", nil)
		if canceled, err := r.wire.Carrier.Cancel(t.Context(), "SHIP:O-1"); err != nil || !canceled {
			t.Fatal(canceled, err)
		}
		r.Clock.Advance(time.Minute)
		r.RunCalls()
		r.want("O-1", "FAILED", map[string]int{trade.ShipmentDispatched: 1, trade.ShipmentDelivered: 0, trade.ShipmentCanceled: 0})
		if n := r.Int("SELECT COUNT(*) FROM outside_call WHERE state < 2"); n != 0 {
			t.Errorf("%d calls are left", n)
		}
		r.refund("O-1", true)
		r.want("O-1", "CANCELED", map[string]int{trade.ShipmentCanceled: 1})
	})
}

func TestWhatTheCarrierHasNoTraceOfIsStopped(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	canceled, err := (&shipping.HTTPCarrier{BaseURL: server.URL}).Cancel(t.Context(), "SHIP:O-1")
	if err != nil || !canceled {
		t.Errorf("%v, %v", canceled, err)
	}
}

func TestTheOperatorListsShipmentsByState(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.wire.onBook = func(n int) (error, error) {
			if n == 2 {
				return nil, nil
			}
			return convergo.Permanent(errors.New("no parcels to the moon")), nil
		}
		for _, no := range []string{"O-1", "O-2", "O-3"} {
			r.pay(no)
			r.RunCalls()
		}
		list := func(query string) (numbers string, next string) {
			t.Helper()
			page := tradetest.Into[shipping.ShipmentList](t, r.Get(tradetest.Operator(), "/shipments?"+query))
			for _, s := range page.Shipments {
				numbers += s.OrderNo + " " + s.State + " "
			}
			return numbers, page.Next
		}
		if got, next := list("state=FAILED&limit=1"); got != "O-1 FAILED " || next != "O-1" {
			t.Errorf("%s, %s", got, next)
		}
		if got, next := list("state=FAILED&limit=1&after=O-1"); got != "O-3 FAILED " || next != "" {
			t.Errorf("%s, %s", got, next)
		}
		if got, _ := list("state=DISPATCHED"); got != "O-2 DISPATCHED " {
			t.Error(got)
		}
		if got := r.Get(tradetest.User("u-1"), "/shipments?state=FAILED"); got.Status != http.StatusForbidden {
			t.Errorf("a user lists shipments: %d", got.Status)
		}
	})
}

func TestAParcelThatCannotBeStoppedIsAShipmentLikeAnyOther(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.pay("O-1")
		r.refund("O-1", true)
		r.wire.onCancel = convergo.Permanent(errors.New("the carrier's office is closed")) // no answer to the question
		r.RunCalls()
		r.want("O-1", "CANCELING", map[string]int{trade.ShipmentCanceled: 0})
		r.wire.onCancel = nil
		r.Clock.Advance(5 * time.Minute) // it is on its way
		r.RunCalls()
		r.want("O-1", "DISPATCHED", map[string]int{trade.ShipmentDispatched: 1, trade.ShipmentCanceled: 0})
		r.Clock.Advance(10 * time.Minute)
		r.RunCalls()
		r.want("O-1", "DELIVERED", map[string]int{trade.ShipmentDelivered: 1})
	})
}

func TestARefundThatOvertakesThePaymentLeavesATombstone(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.refund("O-1", true)
		r.pay("O-1")
		r.RunCalls()
		r.want("O-1", "CANCELED", map[string]int{trade.ShipmentDispatched: 0, trade.ShipmentCanceled: 0})
		if r.bookings() != 0 {
			t.Errorf("%d bookings", r.bookings())
		}
	})
}

func TestAPartialRefundAndOneAfterTheDispatchLeaveTheParcelAlone(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.pay("O-1")
		r.refund("O-1", false)
		r.RunCalls()
		r.want("O-1", "DISPATCHED", map[string]int{trade.ShipmentDispatched: 1})
		r.MustDeliver(trade.OrderRefunded, "O-1", 8, trade.Refund{OrderNo: "O-1", UserID: "u-1", RefundNo: "O-1-R2", Full: true})
		r.RunCalls()
		r.want("O-1", "DISPATCHED", map[string]int{trade.ShipmentCanceled: 0})
	})
}

func TestAShipmentThatTheCarrierRefusesIsAPersonsCaseAndCanStillBeCanceled(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.wire.onBook = func(int) (error, error) { return convergo.Permanent(errors.New("no parcels to the moon")), nil }
		r.pay("O-1")
		r.RunCalls()
		r.want("O-1", "FAILED", map[string]int{trade.ShipmentDispatched: 0})
		r.refund("O-1", true)
		r.want("O-1", "CANCELED", map[string]int{trade.ShipmentCanceled: 1})
	})
}

func TestOnlyTheOwnerSeesHisShipment(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.pay("O-1")
		if got := r.Get(tradetest.User("u-2"), "/shipments/O-1"); got.Status != http.StatusNotFound {
			t.Errorf("%d %s", got.Status, got.Body)
		}
		if got := r.Get(tradetest.User("u-1"), "/shipments/O-9"); got.Status != http.StatusNotFound {
			t.Errorf("%d %s", got.Status, got.Body)
		}
	})
}

func TestAnOrderWithoutPiecesIsADeadLetter(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		_, err := r.Deliver(r.Event(trade.OrderPaid, "O-1", 3, trade.Paid{OrderNo: "O-1", UserID: "u-1"}))
		if convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("%v", err)
		}
	})
}

func TestTheMachineIsSound(t *testing.T) {
	if err := shipping.Shipments().Validate(); err != nil {
		t.Error(err)
	}
}

func TestTheCarriersAnswersHaveVerdicts(t *testing.T) {
	for status, want := range map[int]convergo.Verdict{
		400: convergo.Park, 409: convergo.Park, 422: convergo.Park, 408: convergo.Again, 429: convergo.Again, 500: convergo.Again, 503: convergo.Again,
		401: convergo.Outage, 403: convergo.Outage,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		_, err := (&shipping.HTTPCarrier{BaseURL: server.URL}).Book(t.Context(), shipping.BookingRequest{Key: "k"})
		if err == nil || convergo.VerdictOf(err) != want {
			t.Errorf("%d: %v is %v, want %v", status, err, convergo.VerdictOf(err), want)
		}
		server.Close()
	}
}
