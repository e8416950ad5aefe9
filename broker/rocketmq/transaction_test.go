package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/testlog"
)

// rig is a service that sends transactional messages, and a consumer of them.
type rig struct {
	t       *testing.T
	on      kind
	address string // of its database
	db      database
	store   *troubled
	broker  *Broker
	log     *testlog.Lines // the broker's
	*Transactional
	source *source
	came   map[string]bool // orders whose events were delivered
}

// newRig has an empty database of the kind, and topics and groups of its own.
func newRig(t *testing.T, on kind, cfg TransactionalConfig) *rig {
	t.Helper()
	return newRigOn(t, on, on.fresh(t), cfg)
}

func newRigOn(t *testing.T, on kind, address string, cfg TransactionalConfig) *rig {
	t.Helper()
	r := &rig{t: t, on: on, address: address, db: openOn(t, on, address), log: &testlog.Lines{}, came: map[string]bool{}}
	paid := fstest.MapFS{"00001_paid.sql": {Data: []byte("-- +goose Up\nCREATE TABLE paid (id VARCHAR(64) NOT NULL PRIMARY KEY);\n")}}
	if err := r.db.Migrate(t.Context(), "paid", paid); err != nil {
		t.Fatal(err)
	}
	r.store = &troubled{database: r.db}
	settings := configOf(shared(t), prefix())
	settings.Log = slog.New(slog.NewTextHandler(r.log, nil))
	r.broker = open(t, settings)
	cfg.Group = "order"
	tr, err := NewTransactional(t.Context(), r.broker, r.store, outbox.New[convergo.Tx](r.db, outbox.Config{}), cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Transactional = tr
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- tr.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	r.source = subscribe(t, r.broker, "points")
	return r
}

// pay is the local transaction.
func (r *rig) pay(id string) func(context.Context, convergo.Tx) error {
	return func(ctx context.Context, tx convergo.Tx) error { return pay(ctx, tx, id) }
}

func pay(ctx context.Context, tx convergo.Tx, id string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO paid (id) VALUES (?)", id)
	return err
}

func (r *rig) count(query string, args ...any) int {
	r.t.Helper()
	return count(r.t, r.db, query, args...)
}

// unanswered tells whether a question of the broker about an order was not answered.
func (r *rig) unanswered(order string) bool {
	for line := range strings.Lines(r.log.String()) {
		if strings.Contains(line, "question about a transactional message is not answered") &&
			strings.Contains(line, "event="+string(paid(order, 1).Key)+" ") {
			return true
		}
	}
	return false
}

func (r *rig) isPaid(id string) bool {
	return r.count("SELECT COUNT(*) FROM paid WHERE id = ?", id) == 1
}

func (r *rig) decided(what decision) int {
	return r.count("SELECT COUNT(*) FROM rocketmq_decision WHERE decision = ?", int(what))
}

// comes checks that the event is delivered. One that came before may come again meanwhile: a broker that is slow asks while the sender
// tells it, and takes both answers.
func (r *rig) comes(id string) {
	r.t.Helper()
	for {
		d := fetch(r.t, r.source, 1)[0]
		ack(r.t, d)
		switch {
		case d.Malformed != nil || d.Event.Aggregate.ID != id && !r.came[d.Event.Aggregate.ID]:
			r.t.Fatalf("got %+v, malformed %v; want the event of %s", d.Event, d.Malformed, id)
		case d.Event.Aggregate.ID == id:
			r.came[id] = true
			return
		}
	}
}

// nothing checks that nothing is delivered for a while that has not been before.
func (r *rig) nothing(while time.Duration) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), while)
	defer cancel()
	for {
		got, err := r.source.Fetch(ctx, 1)
		if err != nil {
			return
		}
		if !r.came[got[0].Event.Aggregate.ID] {
			r.t.Fatalf("got %+v, which must not be delivered", got[0].Event)
		}
		ack(r.t, got[0])
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

// diesCommitted is a probe at which a process dies after its local transaction, and before it tells the broker.
func diesCommitted(point string) {
	if point == "transaction.committed" {
		runtime.Goexit()
	}
}

// commitsAndDies sends an order's event and dies at diesCommitted. When the broker's first question, a second after the half message, is
// quicker than a busy machine with the transaction, it is sent again.
func (r *rig) commitsAndDies(order string, inside ...func()) {
	r.t.Helper()
	for range 10 {
		dying(func() {
			err := r.Send(withTroubles(context.Background()), paid(order, 1), func(ctx context.Context, tx convergo.Tx) error {
				err := pay(ctx, tx, order)
				for _, f := range inside {
					f()
				}
				return err
			})
			r.t.Errorf("it did not die: %v", err)
		})
		if r.isPaid(order) {
			return
		}
	}
	r.t.Error("the local transaction has not committed")
}

// send is a Send that is done again when the broker's question was quicker.
func (r *rig) send(order string, send func() error) error {
	for range 10 {
		if err := send(); !errors.Is(err, ErrRolledBack) {
			return err
		}
		r.t.Logf("%s: the broker's question was quicker", order)
	}
	return ErrRolledBack
}

func TestACommittedTransactionDeliversItsMessageAndLeavesNothingToTheOutbox(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, on kind) {
		r := newRig(t, on, TransactionalConfig{})
		if err := r.send("O-1", func() error { return r.Send(t.Context(), paid("O-1", 1), r.pay("O-1")) }); err != nil {
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
	})
}

func TestARolledBackTransactionDeliversNothing(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, on kind) {
		r := newRig(t, on, TransactionalConfig{})
		refused := errors.New("no stock")
		err := r.send("O-1", func() error {
			return r.Send(t.Context(), paid("O-1", 1), func(ctx context.Context, tx convergo.Tx) error {
				return errors.Join(pay(ctx, tx, "O-1"), refused)
			})
		})
		if !errors.Is(err, refused) {
			t.Fatalf("error %v, want the local transaction's own", err)
		}
		r.nothing(4 * time.Second) // two intervals of the broker's questions
		if r.isPaid("O-1") || r.decided(rollback) == 0 || r.count("SELECT COUNT(*) FROM outbox_event") != 0 {
			t.Error("something of the transaction was written, or its decision was not")
		}
		// The same event may be told by another try.
		if err := r.send("O-1", func() error { return r.Send(t.Context(), paid("O-1", 1), r.pay("O-1")) }); err != nil {
			t.Fatal(err)
		}
		r.comes("O-1")
	})
}

func TestAProcessThatDiesAfterTheCommitIsAskedAndTheMessageDelivered(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, on kind) {
		r := newRig(t, on, TransactionalConfig{Probe: diesCommitted})
		r.commitsAndDies("O-1")
		r.comes("O-1")
		eventually(t, "the outbox has nothing to send", func() bool { return r.count("SELECT COUNT(*) FROM outbox_delayed") == 0 })
	})
}

func TestAProcessThatDiesBeforeTheCommitIsAskedAndCannotCommitAnyMore(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, on kind) {
		r := newRig(t, on, TransactionalConfig{})
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
	})
}

func TestCaseB27TwoCheckBacksDeliverOneEventUnderOneKey(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, on kind) {
		var questions atomic.Int64
		again := make(chan struct{})
		r := newRig(t, on, TransactionalConfig{Probe: func(point string) {
			switch point {
			case "transaction.committed":
				runtime.Goexit()
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
	})
}

// troubled is a store whose next transactions go as a test says: those of a context of withTroubles, and the others, which are the
// answers'.
type troubled struct {
	database
	answers troubles
}

// troubles are what happens to transactions, one after another.
type troubles struct {
	mu   sync.Mutex
	list []func(update func() error) error
}

type troublesKey struct{}

func withTroubles(ctx context.Context, list ...func(update func() error) error) context.Context {
	return context.WithValue(ctx, troublesKey{}, &troubles{list: list})
}

// next is what happens to the next transaction; nil: nothing.
func (t *troubles) next() func(update func() error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.list) == 0 {
		return nil
	}
	first := t.list[0]
	t.list = t.list[1:]
	return first
}

func (s *troubled) Update(ctx context.Context, fn func(context.Context, convergo.Tx) error) error {
	update := func() error { return s.database.Update(ctx, fn) }
	of, ok := ctx.Value(troublesKey{}).(*troubles)
	if !ok {
		of = &s.answers
	}
	if trouble := of.next(); trouble != nil {
		return trouble(update)
	}
	return update()
}

var errAway = convergo.Unreachable(errors.New("the database is away"))

// away is a transaction that does not begin.
func away(func() error) error { return errAway }

// unheard is a transaction whose end nobody hears of.
func unheard(update func() error) error { return errors.Join(update(), errAway) }

func faulty(func() error) error { panic("a fault in the listener") }

func TestAPanicInAnAnswerDoesNotEndTheAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t, kinds()[0], TransactionalConfig{Probe: diesCommitted})
	r.store.answers.list = append(r.store.answers.list, faulty, away)
	r.commitsAndDies("O-1")
	r.comes("O-1")
	if r.store.answers.next() != nil {
		t.Error("the store did not fail")
	}
}

func TestACommitThatNobodyHeardOfIsWhatTheDatabaseSays(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, on kind) {
		r := newRig(t, on, TransactionalConfig{})
		send := func(order string, list ...func(update func() error) error) error {
			return r.send(order, func() error { return r.Send(withTroubles(t.Context(), list...), paid(order, 1), r.pay(order)) })
		}
		if err := send("O-1", unheard); err != nil {
			t.Errorf("it was committed: %v", err)
		}
		r.comes("O-1")
		if err := send("O-2", away); !errors.Is(err, errAway) || errors.Is(err, ErrUnknown) {
			t.Errorf("error %v, want the database's own", err)
		}
		rolledBack := r.decided(rollback)
		if r.isPaid("O-2") || rolledBack == 0 {
			t.Error("something was written, or it was not decided to roll back")
		}
		// Nor is the decision heard of: it is the broker's question that finds it.
		if err := send("O-3", unheard, away); !errors.Is(err, ErrUnknown) {
			t.Errorf("error %v, want ErrUnknown", err)
		}
		r.comes("O-3")
		eventually(t, "the outbox has nothing to send", func() bool { return r.count("SELECT COUNT(*) FROM outbox_delayed") == 0 })
		if !r.isPaid("O-1") || !r.isPaid("O-3") || r.decided(commit) != 2 || r.decided(rollback) != rolledBack {
			t.Error("the decisions are not two commits, and the one that was rolled back")
		}
	})
}

func TestAQuestionWaitsForAnOpenTransactionAndIsAskedAgain(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, on kind) {
		r := newRig(t, on, TransactionalConfig{AnswerTimeout: 300 * time.Millisecond, Probe: diesCommitted})
		var sending sync.WaitGroup
		defer sending.Wait()
		commits := make(chan struct{})
		release := sync.OnceFunc(func() { close(commits) })
		defer release()
		sending.Go(func() {
			r.commitsAndDies("O-1", func() { <-commits })
		})
		eventually(t, "a question that is not answered", func() bool { return r.unanswered("O-1") })
		if n := r.decided(commit) + r.decided(rollback); n != 0 {
			t.Errorf("%d decisions, and the transaction is open", n)
		}
		release()
		r.comes("O-1")
		if !r.isPaid("O-1") || r.decided(commit) != 1 {
			t.Error("the transaction has not committed")
		}
	})
}

func TestManyTransactionsAtOnceAllDeliverAndLeaveNothingToTheOutbox(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, on kind) {
		r := newRig(t, on, TransactionalConfig{})
		const many = 32
		var sending sync.WaitGroup
		for i := range many {
			order := fmt.Sprint("O-", i)
			sending.Go(func() {
				if err := r.send(order, func() error { return r.Send(t.Context(), paid(order, 1), r.pay(order)) }); err != nil {
					t.Error(err)
				}
			})
		}
		sending.Wait()
		came := map[string]bool{}
		for len(came) < many { // a copy may be among them
			d := fetch(t, r.source, 1)[0]
			came[d.Event.Aggregate.ID] = true
			ack(t, d)
		}
		if r.count("SELECT COUNT(*) FROM paid") != many || r.decided(commit) != many {
			t.Error("not all have committed")
		}
		if n := r.count("SELECT COUNT(*) FROM outbox_delayed"); n != 0 {
			t.Errorf("the outbox would send %d again", n)
		}
	})
}

func TestAnEventWhoseMessageWasLostIsInTheOutboxAndFallsDue(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, on kind) {
		now := time.Now().UTC().Truncate(time.Microsecond) // what is due already is never delayed
		r := newRig(t, on, TransactionalConfig{
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
	})
}

func TestOldDecisionsAreForgotten(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, on kind) {
		now := time.UnixMicro(1_796_000_000_000_000).UTC()
		r := newRig(t, on, TransactionalConfig{Now: func() time.Time { return now }})
		for _, id := range []string{"1", "2", "3"} {
			if _, err := r.decisions.settle(t.Context(), id); err != nil {
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
		if r.decided(rollback) != 0 {
			t.Error("decisions are left")
		}
	})
}
