package brokertest

import (
	"testing"
	"time"

	"github.com/convergo/convergo"
)

func lifeLaws() []law {
	durable := func(b Backend) bool { return b.Guarantees.Durable }
	return []law{
		{"AConsumerThatWasAwayFindsWhatItMissed", nil, away},
		{"ASubjectAddedLaterIsDelivered", nil, addedSubject},
		{"ASubjectTakenAwayIsNoLongerDelivered", nil, removedSubject},
		{"ARestartKeepsEverything", durable, restart},
		{"AfterARestartTheUnacknowledgedComeFirstAndAtOnce", func(b Backend) bool { return durable(b) && b.Guarantees.RecoversInOrder }, restartInOrder},
	}
}

func away(t *testing.T, b Backend) {
	publish(t, b.Broker, paid("before", 1))
	first := subscribe(t, b.Broker, "payment")
	if !b.Guarantees.KeepsHistory {
		publish(t, b.Broker, paid("before", 2))
	}
	ack(t, fetch(t, first, 1)...)
	missed := series("O-1", 1, 20)
	publish(t, b.Broker, missed...)
	got := fetch(t, subscribe(t, b.Broker, "payment"), len(missed))
	same(t, b.Guarantees, got, missed)
}

func addedSubject(t *testing.T, b Backend) {
	ack1 := subscribe(t, b.Broker, "payment")
	publish(t, b.Broker, paid("O-1", 1))
	ack(t, fetch(t, ack1, 1)...)
	s := subscribe(t, b.Broker, "payment", orders[0], convergo.Subject{Topic: "stock", Type: "StockHeld"})
	events := []convergo.Event{paid("O-1", 2), event("stock", "StockHeld", "O-1", 1)}
	publish(t, b.Broker, events...)
	got := fetch(t, s, 2)
	ack(t, got...)
	same(t, Guarantees{}, got, events)
	nothing(t, s, silence)
}

func removedSubject(t *testing.T, b Backend) {
	subscribe(t, b.Broker, "payment", orders[0], convergo.Subject{Topic: "stock"})
	s := subscribe(t, b.Broker, "payment")
	publish(t, b.Broker, event("stock", "StockHeld", "O-1", 1), paid("O-1", 1))
	got := fetch(t, s, 1)
	ack(t, got...)
	same(t, b.Guarantees, got, []convergo.Event{paid("O-1", 1)})
	nothing(t, s, silence)
}

func restart(t *testing.T, b Backend) {
	s := subscribe(t, b.Broker, "payment")
	subscribe(t, b.Broker, "ledger")
	events := series("O-1", 1, 60)
	publish(t, b.Broker, events...)
	ack(t, fetch(t, s, 20)...)
	again := b.Restart(t)
	rest := fetch(t, subscribe(t, again, "payment"), 40)
	same(t, b.Guarantees, rest, events[20:])
	for i, d := range rest {
		sameEvent(t, d.Event, events[20+i])
	}
	same(t, b.Guarantees, fetch(t, subscribe(t, again, "ledger"), 60), events)
	publish(t, again, paid("O-1", 61))
}

func restartInOrder(t *testing.T, b Backend) {
	s := subscribe(t, b.Broker, "payment")
	events := series("O-1", 1, 30)
	publish(t, b.Broker, events...)
	ack(t, fetch(t, s, 20)[:10]...)
	again := b.Restart(t)
	publish(t, again, paid("O-1", 31))
	start := time.Now()
	got := fetch(t, subscribe(t, again, "payment"), 21)
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("took %s", took)
	}
	same(t, b.Guarantees, got, append(events[10:], paid("O-1", 31)))
}
