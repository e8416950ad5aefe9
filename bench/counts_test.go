package bench

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo/relay"
)

// The counts below do not depend on the machine. Their bounds are generous: they are there to catch a statement per event
// where there was one per batch, not to hold the last per cent.

func TestAFullBatchIsOneCommitAndSomeStatements(t *testing.T) {
	const events = 4 * batch
	l := newBacklog(t, events)
	before := l.store.Stats()
	d := l.drain(t, nobody{})
	after := l.store.Stats()
	if n := l.pending(t); n != 0 || d.done != events {
		t.Fatalf("%d events settled, %d are pending; want %d and 0", d.done, n, events)
	}
	commits := float64(after.Commits-before.Commits) / float64(d.batches)
	if commits > 2 {
		t.Errorf("%.2f commits a batch, want 2 at most", commits)
	}
	if d.batches > 4*events/batch {
		t.Errorf("%d batches for %d events: they are not filled", d.batches, events)
	}
	if n := float64(after.Statements-before.Statements) / float64(d.batches); n > 15 {
		t.Errorf("%.1f statements a batch, want 15 at most", n)
	}
	if n := d.allocs(); n > 60 {
		t.Errorf("%.1f allocations an event between claim and settlement, want 60 at most", n)
	}
}

func TestABatchOfMessagesIsOneCommit(t *testing.T) {
	s := openInboxStore(t)
	r := consume(t, s, "stock", 1000, 100)
	if r.stats.Commits > 12 {
		t.Errorf("%d commits for 10 batches of messages", r.stats.Commits)
	}
	if n := float64(r.stats.Statements) / 1000; n > 8 {
		t.Errorf("%.1f statements a message, want 8 at most", n)
	}
	if n := r.allocs(); n > 100 {
		t.Errorf("%.1f allocations a message, want 100 at most", n)
	}
}

func TestAnEventIsOneStatementInItsTransaction(t *testing.T) {
	s := openShop(t)
	before := s.store.Stats()
	for range 10 {
		must(t, s.sell(context.Background(), s.byOutbox))
	}
	withEvents := s.store.Stats()
	for range 10 {
		must(t, s.sell(context.Background(), s.silent))
	}
	after := s.store.Stats()
	added := withEvents.Statements - before.Statements - (after.Statements - withEvents.Statements)
	if added != 10 {
		t.Errorf("10 events are %d statements, want 10", added)
	}
	if n := withEvents.Commits - before.Commits; n != 10 {
		t.Errorf("10 transactions are %d commits", n)
	}
}

func TestAnIdleRelayRunsAtMostTwoStatementsASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		r := relay.New(s, nobody{}, relay.Config{})
		s.OnEvents(r.Wake)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		fill(t, s, 100)
		pass(20 * time.Second)
		const idle = 300
		before := s.Stats()
		pass(idle * time.Second)
		after := s.Stats()
		if n := after.Statements - before.Statements; n > 2*idle || n < idle {
			t.Errorf("%d statements in %d idle seconds, want %d to %d", n, idle, idle, 2*idle)
		}
		if sent := r.Stats().Sent; sent != 100 {
			t.Errorf("%d events were sent before, want 100", sent)
		}
		stop()
		must(t, <-ended)
	})
}

// pass lets time go by and everything that is due happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}
