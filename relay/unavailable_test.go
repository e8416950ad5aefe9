package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/memory"
	"github.com/convergo/convergo/testlog"
)

var errAway = convergo.Unavailable(errors.New("endpoint shop is down"))

// attemptsOf reads what the store counts.
func attemptsOf(t *testing.T, store *memory.Store, key convergo.Key) int {
	t.Helper()
	dead, err := store.DeadEvents(t.Context(), 10, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dead {
		if d.Event.Key == key {
			return d.Attempts
		}
	}
	return 0
}

func TestAReceiverThatIsAwayForTwoDaysCostsOneAttemptAndHoldsNobodyElseUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, b := memory.New(), &broker{}
		var away atomic.Bool
		away.Store(true)
		var asked atomic.Int64
		b.answer = func(_ context.Context, e convergo.Event) error {
			if e.Aggregate.ID != "O-1" || !away.Load() {
				return nil
			}
			asked.Add(1)
			return fmt.Errorf("publish: %w", errAway)
		}
		for v := 1; v <= 3; v++ {
			add(t, store, event("O-1", v))
		}
		var dead atomic.Int64
		r := start(store, b, relay.Config{Poll: time.Minute, Lease: time.Hour, MaxAttempts: 3, Alert: func(relay.Failure) { dead.Add(1) }})
		for hour := range 48 {
			add(t, store, event("O-2", hour+1))
			pass(time.Hour)
		}
		if n := asked.Load(); n < 48*50 || n > 48*80 {
			t.Errorf("asked %d times in 48 hours, want about once a minute", n)
		}
		if n := len(b.copies()); n != 48 || dead.Load() != 0 || r.Stats().InOutage {
			t.Errorf("%d events of the others were sent, %d died, %+v", n, dead.Load(), r.Stats())
		}
		away.Store(false)
		took := until(t, 2*time.Minute, "all events", b.has(51))
		if took > 61*time.Second {
			t.Errorf("it took %v to notice that the receiver is back", took)
		}
		if s := r.Stats(); s.Unavailable != asked.Load() || s.Failed != asked.Load() {
			t.Errorf("%+v, want %d failures for want of a receiver", s, asked.Load())
		}
		wantOnce(t, b, 51)
		r.stop(t)
	})
}

// What spends attempts afterwards has nearly all of them left; what refused before has those back that it had not spent.
func TestARefusalAfterAWaitHasItsOwnAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, b := memory.New(), &broker{}
		refuses := errors.New("answered 500")
		answers := []error{refuses, refuses, errAway, errAway, errAway, errAway, refuses, refuses}
		var n atomic.Int64
		b.answer = func(context.Context, convergo.Event) error { return answers[min(int(n.Add(1)), len(answers))-1] }
		add(t, store, event("O-1", 1))
		var died relay.Failure
		var dead atomic.Bool
		r := start(store, b, relay.Config{MaxAttempts: 4, Alert: func(f relay.Failure) { died = f; dead.Store(true) }})
		until(t, time.Hour, "it is dead", dead.Load)
		if n.Load() != 8 || died.Attempts+1 != 4 || attemptsOf(t, store, key("O-1", 1)) != 4 {
			t.Errorf("asked %d times and dead after %d attempts, want 8 and 4", n.Load(), died.Attempts+1)
		}
		r.stop(t)
	})
}

func TestPatienceEndsAfterThreeDaysAndThenAttemptsAreSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, b := memory.New(), &broker{answer: func(context.Context, convergo.Event) error { return errAway }}
		began := time.Now()
		later := event("O-2", 1)
		later.DeliverAt = began.Add(48 * time.Hour)
		add(t, store, event("O-1", 1), later)
		var dead atomic.Int64
		r := start(store, b, relay.Config{Poll: time.Minute, Lease: time.Hour, Alert: func(relay.Failure) { dead.Add(1) }})
		pass(72*time.Hour - time.Minute)
		if dead.Load() != 0 {
			t.Error("dead before three days")
		}
		for dead.Load() == 0 && time.Since(began) < 96*time.Hour {
			pass(time.Minute)
		}
		if took := time.Since(began); took < 72*time.Hour+time.Hour {
			t.Errorf("dead after %v: its attempts were not left", took)
		}
		pass(72*time.Hour + 48*time.Hour - time.Since(began) - time.Minute)
		if dead.Load() != 1 {
			t.Error("the delayed event's patience does not begin with its time")
		}
		r.stop(t)
	})
}

// A broker that answers and refuses is an outage too, such as a topic that another platform has made otherwise: the log tells the cause
// and does not claim that nobody answered.
func TestTheLogOfAnOutageTellsItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines testlog.Lines
		var refuses atomic.Bool
		refuses.Store(true)
		store, b := memory.New(), &broker{}
		b.answer = func(context.Context, convergo.Event) error {
			if refuses.Load() {
				return convergo.Unreachable(errors.New("topic order has 4 queues"))
			}
			return nil
		}
		add(t, store, event("O-1", 1))
		r := start(store, b, relay.Config{Log: slog.New(slog.NewTextHandler(&lines, nil))})
		pass(2 * time.Minute)
		refuses.Store(false)
		until(t, time.Minute, "the event", b.has(1))
		r.stop(t)
		text := lines.String()
		for _, line := range []string{`msg="the broker takes no events now; one at a time will try until it does"`, `msg="the broker still takes no events"`} {
			if _, rest, found := strings.Cut(text, line); !found || !strings.Contains(strings.SplitN(rest, "\n", 2)[0], `"topic order has 4 queues"`) {
				t.Errorf("%s with its cause is not in\n%s", line, text)
			}
		}
		if strings.Contains(text, "reached") || !strings.Contains(text, "takes events again") {
			t.Error(text)
		}
	})
}

func TestTheNewsThatTheBrokerIsBackEndsALongPauseBetweenProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var away atomic.Bool
		away.Store(true)
		store, b := memory.New(), &broker{}
		b.answer = func(context.Context, convergo.Event) error {
			if away.Load() {
				return convergo.Unreachable(errors.New("not connected"))
			}
			return nil
		}
		add(t, store, event("O-1", 1))
		r := start(store, b, relay.Config{Outage: convergo.Backoff{Schedule: []time.Duration{time.Second, time.Hour}}})
		pass(time.Minute) // the next probe is due in an hour
		r.BrokerBack()    // too early: it is not
		pass(100 * time.Millisecond)
		away.Store(false)
		if took := until(t, time.Hour, "the event", b.has(1)); took > 3*time.Second {
			t.Errorf("%v after the news that came too early", took)
		}
		away.Store(true)
		add(t, store, event("O-1", 2))
		pass(time.Minute)
		away.Store(false)
		r.BrokerBack()
		if took := until(t, time.Hour, "the event", b.has(2)); took > 100*time.Millisecond {
			t.Errorf("%v after the news", took)
		}
		r.stop(t)
	})
}
