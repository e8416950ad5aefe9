package rocketmq

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/store/sqlite"
)

// rig is a service that sends transactional messages, and a consumer of them.
type rig struct {
	t      *testing.T
	broker *Broker
	store  *sqlite.Store
	*Transactional
	source *source
}

func newRig(t *testing.T, store Store, cfg TransactionalConfig) *rig {
	t.Helper()
	db, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "order.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if failing, ok := store.(*failingStore); ok {
		failing.Store = db
	} else {
		store = db
	}
	b := open(t, configOf(shared(t), prefix()))
	cfg.Group = "order"
	tr, err := NewTransactional(t.Context(), b, store, outbox.New[convergo.Tx](db, outbox.Config{}), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- tr.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	if err := db.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE paid (id TEXT PRIMARY KEY)")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return &rig{t: t, broker: b, store: db, Transactional: tr, source: subscribe(t, b, "points")}
}

// pay is the local transaction.
func (r *rig) pay(id string) func(context.Context, convergo.Tx) error {
	return func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO paid (id) VALUES (?)", id)
		return err
	}
}

func (r *rig) count(query string, args ...any) (n int) {
	r.t.Helper()
	if err := r.store.View(r.t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		return tx.QueryRowContext(ctx, query, args...).Scan(&n)
	}); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *rig) isPaid(id string) bool {
	return r.count("SELECT COUNT(*) FROM paid WHERE id = ?", id) == 1
}

func (r *rig) decided(what decision) int {
	return r.count("SELECT COUNT(*) FROM rocketmq_decision WHERE decision = ?", int(what))
}

// comes checks that the event is delivered.
func (r *rig) comes(id string) {
	r.t.Helper()
	d := fetch(r.t, r.source, 1)[0]
	if d.Malformed != nil || d.Event.Aggregate.ID != id {
		r.t.Fatalf("got %+v, malformed %v; want the event of %s", d.Event, d.Malformed, id)
	}
	ack(r.t, d)
}

// nothing checks that nothing is delivered for a while.
func (r *rig) nothing(while time.Duration) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), while)
	defer cancel()
	if got, err := r.source.Fetch(ctx, 1); err == nil {
		r.t.Fatalf("got %+v, which must not be delivered", got[0].Event)
	}
}

// dying runs f on a goroutine that ends where the probe says so, as a process that dies there.
func dying(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// at is a probe that acts at a point, once.
func at(point string, act func()) convergo.Probe {
	var once atomic.Bool
	return func(p string) {
		if p == point && once.CompareAndSwap(false, true) {
			act()
		}
	}
}

func TestACommittedTransactionDeliversItsMessageAndLeavesNothingToTheOutbox(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, TransactionalConfig{})
	if err := r.Send(t.Context(), paid("O-1", 1), r.pay("O-1")); err != nil {
		t.Fatal(err)
	}
	r.comes("O-1")
	if !r.isPaid("O-1") || r.decided(commit) != 1 {
		t.Error("the local transaction has not committed with its decision")
	}
	if n := r.count("SELECT COUNT(*) FROM outbox_event"); n != 1 {
		t.Errorf("%d events in the outbox, want 1 for replays", n)
	}
	if n := r.count("SELECT COUNT(*) FROM outbox_delayed") + r.count("SELECT COUNT(*) FROM outbox_pending"); n != 0 {
		t.Errorf("the outbox would send %d events again", n)
	}
}

func TestARolledBackTransactionDeliversNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, TransactionalConfig{})
	refused := errors.New("no stock")
	err := r.Send(t.Context(), paid("O-1", 1), func(ctx context.Context, tx convergo.Tx) error {
		return errors.Join(r.pay("O-1")(ctx, tx), refused)
	})
	if !errors.Is(err, refused) {
		t.Fatalf("error %v, want the local transaction's own", err)
	}
	r.nothing(4 * time.Second) // two intervals of the broker's questions
	if r.isPaid("O-1") || r.decided(rollback) != 1 || r.count("SELECT COUNT(*) FROM outbox_event") != 0 {
		t.Error("something of the transaction was written, or its decision was not")
	}
	// The same event may be told by another try.
	if err := r.Send(t.Context(), paid("O-1", 1), r.pay("O-1")); err != nil {
		t.Fatal(err)
	}
	r.comes("O-1")
}

func TestAProcessThatDiesAfterTheCommitIsAskedAndTheMessageDelivered(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, TransactionalConfig{Probe: at("transaction.committed", runtime.Goexit)})
	dying(func() {
		_ = r.Send(context.Background(), paid("O-1", 1), r.pay("O-1"))
		t.Error("it did not die")
	})
	if !r.isPaid("O-1") {
		t.Fatal("the local transaction has not committed")
	}
	r.comes("O-1")
	eventually(t, "the outbox has nothing to send", func() bool { return r.count("SELECT COUNT(*) FROM outbox_delayed") == 0 })
}

func TestAProcessThatDiesBeforeTheCommitIsAskedAndCannotCommitAnyMore(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, TransactionalConfig{})
	asked := make(chan struct{})
	r.cfg.Probe = func(point string) {
		if point == "transaction.half" {
			// Stopped here until the broker has asked and was answered: a process that is as good as dead, and comes back.
			eventually(t, "the decision to roll back", func() bool { return r.decided(rollback) == 1 })
			close(asked)
		}
	}
	err := r.Send(t.Context(), paid("O-1", 1), r.pay("O-1"))
	<-asked
	if !errors.Is(err, ErrRolledBack) {
		t.Fatalf("error %v, want ErrRolledBack", err)
	}
	if r.isPaid("O-1") || r.decided(commit) != 0 || r.count("SELECT COUNT(*) FROM outbox_event") != 0 {
		t.Error("the late transaction wrote something")
	}
	r.nothing(3 * time.Second)
}

func TestCaseB27TwoCheckBacksDeliverOneEventUnderOneKey(t *testing.T) {
	t.Parallel()
	var questions atomic.Int64
	again := make(chan struct{})
	r := newRig(t, nil, TransactionalConfig{Probe: func(point string) {
		switch point {
		case "transaction.committed":
			if questions.Load() == 0 {
				runtime.Goexit()
			}
		case "transaction.asked":
			if questions.Add(1) == 1 {
				<-again // the answer is late: the broker asks a second time meanwhile
			} else if questions.Load() == 2 {
				close(again)
			}
		}
	}})
	dying(func() { _ = r.Send(context.Background(), paid("O-55", 1), r.pay("O-55")) })
	eventually(t, "two questions", func() bool { return questions.Load() >= 2 })
	// One copy or two: all of them are one event to an inbox.
	r.comes("O-55")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	for {
		got, err := r.source.Fetch(ctx, 10)
		if err != nil {
			break
		}
		for _, d := range got {
			if d.Event.Key != paid("O-55", 1).Key {
				t.Errorf("key %q, want %q", d.Event.Key, paid("O-55", 1).Key)
			}
			t.Log("a second copy came, with the same key")
			ack(t, d)
		}
	}
	if r.decided(commit) != 1 || r.decided(rollback) != 0 {
		t.Error("the decisions are not one commit")
	}
}

// failingStore panics or fails in the next answers.
type failingStore struct {
	*sqlite.Store
	panics, failures atomic.Int64
}

func (s *failingStore) Update(ctx context.Context, fn func(context.Context, convergo.Tx) error) error {
	if s.panics.Add(-1) >= 0 {
		panic("a fault in the listener")
	}
	if s.failures.Add(-1) >= 0 {
		return convergo.Unreachable(errors.New("the database is away"))
	}
	return s.Store.Update(ctx, fn)
}

func TestAPanicOrAnOutageInAnAnswerDoesNotEndTheAnswers(t *testing.T) {
	t.Parallel()
	store := &failingStore{}
	r := newRig(t, store, TransactionalConfig{Probe: at("transaction.committed", func() {
		store.panics.Store(1)
		store.failures.Store(1)
		runtime.Goexit()
	})})
	dying(func() { _ = r.Send(context.Background(), paid("O-1", 1), r.pay("O-1")) })
	r.comes("O-1")
	if store.panics.Load() >= 0 || store.failures.Load() >= 0 {
		t.Error("the store did not fail")
	}
}

func TestAHalfMessageOfADeadProcessIsAnsweredByAnotherInstance(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, TransactionalConfig{Probe: at("transaction.committed", runtime.Goexit)})
	dying(func() { _ = r.Send(context.Background(), paid("O-1", 1), r.pay("O-1")) })
	r.broker.die()
	cfg := r.broker.cfg
	other := open(t, cfg)
	tr, err := NewTransactional(t.Context(), other, r.store, outbox.New[convergo.Tx](r.store, outbox.Config{}), TransactionalConfig{Group: "order"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- tr.Run(ctx) }()
	r.source = subscribe(t, other, "points")
	r.comes("O-1")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAnEventWhoseMessageWasLostIsInTheOutboxAndFallsDue(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC().Truncate(time.Microsecond) // what is due already is never delayed
	r := newRig(t, nil, TransactionalConfig{
		Now: func() time.Time { return now }, RefillAfter: time.Hour, Probe: func(point string) {
			switch point {
			case "transaction.committed":
				runtime.Goexit()
			case "transaction.asked": // a broker that has lost the message does not ask; this one's questions are not answered
				panic("the message was lost")
			}
		},
	})
	dying(func() { t.Errorf("it came back: %v", r.Send(context.Background(), paid("O-1", 1), r.pay("O-1"))) })
	if n := r.count("SELECT COUNT(*) FROM outbox_delayed WHERE deliver_at = ?", convergo.Micros(now.Add(time.Hour))); n != 1 {
		t.Errorf("%d events wait in the outbox for the refill, want 1", n)
	}
}

func TestOldDecisionsAreForgotten(t *testing.T) {
	t.Parallel()
	now := time.UnixMicro(1_796_000_000_000_000).UTC()
	r := newRig(t, nil, TransactionalConfig{Now: func() time.Time { return now }})
	for _, id := range []string{"O-1", "O-2", "O-3"} {
		if err := r.Send(t.Context(), paid(id, 1), r.pay(id)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		before     time.Time
		most, want int
	}{{now, 10, 0}, {now.Add(time.Second), 2, 2}, {now.Add(time.Second), 2, 1}} {
		if n, err := r.Purge(t.Context(), c.before, c.most); n != c.want || err != nil {
			t.Errorf("purged %d (%v), want %d", n, err, c.want)
		}
	}
	if r.decided(commit) != 0 {
		t.Error("decisions are left")
	}
}
