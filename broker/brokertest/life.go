package brokertest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

func lifeLaws() []law {
	durable := func(b Backend) bool { return b.Guarantees.Durable }
	return []law{
		{"AConsumerThatWasAwayFindsWhatItMissed", nil, away},
		{"ASubjectAddedLaterIsDelivered", nil, addedSubject},
		{"ASubjectTakenAwayIsNoLongerDelivered", func(b Backend) bool { return b.Another == nil }, removedSubject},
		{"AnOlderInstanceWithFewerSubjectsThatSubscribesAgainLosesNothingForTheNewer", func(b Backend) bool { return b.Another != nil }, olderSubscribes},
		{"ARestartKeepsEverything", durable, restart},
		{"AfterARestartTheUnacknowledgedComeFirstAndAtOnce", func(b Backend) bool { return durable(b) && b.Guarantees.RecoversInOrder }, restartInOrder},
		{"NothingConfirmedIsLostWhenTheServerIsRestartedWhilePublishing", durable, restartWhilePublishing},
		{"NothingConfirmedIsLostWhenTheServerIsKilledWhilePublishing", func(b Backend) bool { return b.Guarantees.SurvivesKill }, killWhilePublishing},
	}
}

func away(t *testing.T, b Backend) {
	publish(t, b.Broker, paid("before", 1))
	first := subscribe(t, b.Broker, "payment")
	if !b.Guarantees.KeepsHistory {
		publish(t, b.Broker, paid("before", 2))
	}
	ack(t, fetch(t, first, 1)...)
	closeSource(t, first)
	missed := series("O-1", 1, 20)
	publish(t, b.Broker, missed...)
	got := fetch(t, subscribe(t, b.Broker, "payment"), len(missed))
	same(t, b.Guarantees, got, missed)
}

func addedSubject(t *testing.T, b Backend) {
	before := subscribe(t, b.Broker, "payment")
	publish(t, b.Broker, paid("O-1", 1))
	ack(t, fetch(t, before, 1)...)
	closeSource(t, before)
	s := subscribe(t, b.Broker, "payment", orders[0], convergo.Subject{Topic: "stock", Type: "StockHeld"})
	events := []convergo.Event{paid("O-1", 2), event("stock", "StockHeld", "O-1", 1)}
	publish(t, b.Broker, events...)
	got := fetch(t, s, 2)
	ack(t, got...)
	same(t, Guarantees{}, got, events)
	nothing(t, s, silence)
}

func removedSubject(t *testing.T, b Backend) {
	closeSource(t, subscribe(t, b.Broker, "payment", orders[0], convergo.Subject{Topic: "stock"}))
	s := subscribe(t, b.Broker, "payment")
	publish(t, b.Broker, event("stock", "StockHeld", "O-1", 1), paid("O-1", 1))
	got := fetch(t, s, 1)
	ack(t, got...)
	same(t, b.Guarantees, got, []convergo.Event{paid("O-1", 1)})
	nothing(t, s, silence)
}

// olderSubscribes is a roll-out: the newer instance wants a type and a topic more, and the older one is started again, is for a
// while the only one, and goes. Whatever is published meanwhile comes, to whichever of them, and by the end to the newer.
func olderSubscribes(t *testing.T, b Backend) {
	wide := []convergo.Subject{orders[0], {Topic: "order", Type: "OrderClosed"}, {Topic: "stock", Type: "StockHeld"}}
	older := subscribe(t, b.Broker, "payment")
	another, _ := b.Another(t)
	newer := subscribe(t, another, "payment", wide...)
	if closeSource(t, older) {
		older = subscribe(t, b.Broker, "payment")
	}
	var want []convergo.Event
	var n int64
	wave := func() []convergo.Event {
		n++
		var events []convergo.Event
		for o := range 12 { // so many that every partition gets some
			id := fmt.Sprint("O-", o)
			events = append(events, paid(id, 3*n), event("order", "OrderClosed", id, 3*n+1), event("stock", "StockHeld", id, 3*n+2))
		}
		publish(t, b.Broker, events...)
		want = append(want, events...)
		return events
	}
	var r received
	stopOlder := begin(t, func(ctx context.Context) { r.read(ctx, "older", older) })
	stopNewer := begin(t, func(ctx context.Context) { r.read(ctx, "newer", newer) })
	first := wave()
	first = slices.DeleteFunc(slices.Clone(first), func(e convergo.Event) bool { return e.Topic == "stock" }) // of which the newer may have only a share now
	eventually(t, patience, "with both there, all of the topic that both read comes", func() bool { return r.all(first) })
	stopNewer()
	closed := closeSource(t, newer)
	wave() // what only the newer knows is kept for it, or comes to the older
	if !closed {
		newer = subscribe(t, another, "payment", wide...)
	}
	stopOlder()
	closeSource(t, older)
	wave()
	if closed {
		newer = subscribe(t, another, "payment", wide...)
	}
	stopNewer = begin(t, func(ctx context.Context) { r.read(ctx, "newer", newer) })
	eventually(t, patience, "with the newer there again all comes", func() bool { return r.all(want) })
	stopNewer()
}

func restart(t *testing.T, b Backend) {
	s := subscribe(t, b.Broker, "payment")
	closeSource(t, subscribe(t, b.Broker, "ledger"))
	events := series("O-1", 1, 60)
	publish(t, b.Broker, events...)
	ack(t, fetch(t, s, 20)...)
	tellAcks(t, b, s)
	again := b.Restart(t)
	rest := fetch(t, subscribe(t, again, "payment"), 40)
	same(t, b.Guarantees, rest, events[20:])
	for i, d := range rest {
		sameEvent(t, d.Event, events[20+i])
	}
	same(t, b.Guarantees, fetch(t, subscribe(t, again, "ledger"), 60), events)
	publish(t, again, paid("O-1", 61))
}

// tellAcks sees to it that the server knows of the acknowledgements.
func tellAcks(t *testing.T, b Backend, s inbox.Source) {
	t.Helper()
	if b.Guarantees.GathersAcks && !closeSource(t, s) {
		t.Error("GathersAcks is declared, and its sources cannot be closed")
	}
}

func restartInOrder(t *testing.T, b Backend) {
	s := subscribe(t, b.Broker, "payment")
	events := series("O-1", 1, 30)
	publish(t, b.Broker, events...)
	ack(t, fetch(t, s, 20)[:10]...)
	tellAcks(t, b, s)
	again := b.Restart(t)
	publish(t, again, paid("O-1", 31))
	start := time.Now()
	got := fetch(t, subscribe(t, again, "payment"), 21)
	if took := time.Since(start); took > b.Guarantees.Prompt {
		t.Errorf("took %s", took)
	}
	same(t, b.Guarantees, got, append(events[10:], paid("O-1", 31)))
}

func restartWhilePublishing(t *testing.T, b Backend) {
	again := make(chan Broker, 1)
	outlives(t, b, again, func() { again <- b.Restart(t) })
}

func killWhilePublishing(t *testing.T, b Backend) {
	if b.Kill == nil {
		t.Fatal("SurvivesKill is promised and Backend.Kill is missing")
	}
	outlives(t, b, nil, func() { b.Kill(t) })
}

// outlives publishes from several goroutines and consumes while fault happens. Everything that was confirmed before, during
// and after it must arrive, each aggregate in order. again gets the Broker to go on with; nil means the same one.
func outlives(t *testing.T, b Backend, again chan Broker, fault func()) {
	const publishers, before, after = 3, 300, 90
	var r received
	first := subscribe(t, b.Broker, "payment") // a broker without history keeps only what comes from now on
	stopReading := begin(t, func(ctx context.Context) { r.read(ctx, "one", first) })
	lines := make([]*line, publishers)
	for i := range lines {
		lines[i] = newLine(fmt.Sprint("L", i), 3)
	}
	stopWriting := begin(t, func(ctx context.Context) { runAll(ctx, t, lines, b.Broker) })
	all := func(n int) func() bool {
		return func() bool {
			return !slices.ContainsFunc(lines, func(l *line) bool { return l.confirmed() < n })
		}
	}
	eventually(t, patience, "events are confirmed", all(before/publishers))
	fault()
	if again != nil {
		stopWriting()
		stopReading()
		broker, second := <-again, first
		if broker != b.Broker {
			second = subscribe(t, broker, "payment")
		}
		begin(t, func(ctx context.Context) { r.read(ctx, "two", second) })
		stopWriting = begin(t, func(ctx context.Context) { runAll(ctx, t, lines, broker) })
	}
	reached := 0
	for _, l := range lines {
		reached = max(reached, l.confirmed())
	}
	eventually(t, 2*patience, "events are confirmed after the fault", all(reached+after))
	stopWriting()
	r.has(t, lines, 2*patience)
	r.inOrder(t, b.Guarantees)
}
