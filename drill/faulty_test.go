package drill

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/store/sqlite"
)

func TestTheJournalKeepsEveryFaultThatHappenedAndDropsATornLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "faults.jsonl")
	if faults, err := ReadJournal(path); err != nil || len(faults) != 0 {
		t.Fatalf("a journal that is not there: %v %v", faults, err)
	}
	want := []Fault{
		{Kind: FaultHandlerAfter, Consumer: "points", Key: "OrderPaid:1", At: time.Date(2030, 1, 1, 0, 0, 0, 7000, time.UTC)},
		{Kind: FaultKill, At: time.Date(2030, 1, 1, 0, 0, 1, 0, time.UTC)},
	}
	for _, f := range want { // each by a process of its own
		j, err := OpenJournal(path)
		if err == nil {
			err = j.Note(f)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, torn := range []string{"", `{`, `{"kind":"hand`, `{"kind":"x","at":"2030-01-01T00:00:00Z"`} {
		if err := os.WriteFile(path, append(slices.Clone(whole), torn...), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadJournal(path); err != nil || !slices.Equal(got, want) {
			t.Errorf("with %q at its end: %v %v", torn, got, err)
		}
	}
	if err := os.WriteFile(path, []byte("no journal\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadJournal(path); err == nil {
		t.Error("a file that is no journal was read")
	}
}

func TestATornLineIsNotContinuedByTheNextProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "faults.jsonl")
	if err := os.WriteFile(path, []byte(`{"kind":"first","at":"2030-01-01T00:00:00Z"}`+"\n"+`{"kind":"to`), 0o600); err != nil {
		t.Fatal(err)
	}
	j, err := OpenJournal(path)
	if err == nil {
		err = j.Note(Fault{Kind: "second"})
	}
	if err != nil {
		t.Fatal(err)
	}
	faults, err := ReadJournal(path)
	if err != nil || len(faults) != 2 || faults[0].Kind != "first" || faults[1].Kind != "second" {
		t.Errorf("%v %v", faults, err)
	}
}

func TestAJournalThatCannotBeWrittenIsAnError(t *testing.T) {
	if _, err := OpenJournal(filepath.Join(t.TempDir(), "no", "such", "folder")); err == nil {
		t.Error("opened a journal in a folder that is not there")
	}
	broken := &Journal{out: failing{}}
	h := Faulty(func(context.Context, int, convergo.Event) error { return nil }, "points", 1, 1, broken)
	if err := h(t.Context(), 0, convergo.Event{}); !errors.Is(err, errFull) {
		t.Errorf("%v", err)
	}
}

var errFull = errors.New("the disk is full")

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errFull }

func TestAFaultyHandlerFailsAtItsRateBeforeAndAfterItsWork(t *testing.T) {
	const runs = 4000
	play := func(rate float64, seed uint64) (failed, before, after int, pattern []bool) {
		path := filepath.Join(t.TempDir(), "faults.jsonl")
		j, err := OpenJournal(path)
		if err != nil {
			t.Fatal(err)
		}
		worked := 0
		h := Faulty(func(context.Context, int, convergo.Event) error { worked++; return nil }, "points", rate, seed, j)
		for range runs {
			err := h(t.Context(), 0, convergo.Event{Key: "OrderPaid:1"})
			if err != nil {
				failed++
				if convergo.VerdictOf(err) == convergo.Park {
					t.Fatal("a made fault must be tried again")
				}
			}
			pattern = append(pattern, err != nil)
		}
		faults, err := ReadJournal(path)
		if err != nil || len(faults) != failed {
			t.Fatalf("%d failures, %d in the journal, %v", failed, len(faults), err)
		}
		for _, f := range faults {
			if f.Consumer != "points" || f.Key != "OrderPaid:1" || f.At.IsZero() {
				t.Fatalf("%+v", f)
			}
			if f.Kind == FaultHandlerAfter {
				after++
			} else {
				before++
			}
		}
		if worked != runs-before {
			t.Errorf("worked %d times with %d failures before the work", worked, before)
		}
		return failed, before, after, pattern
	}
	failed, before, after, first := play(0.1, 1)
	if failed < runs/20 || failed > runs/5 || before < failed/4 || after < failed/4 {
		t.Errorf("of %d runs %d failed: %d before, %d after the work", runs, failed, before, after)
	}
	if _, _, _, again := play(0.1, 1); !slices.Equal(first, again) {
		t.Error("the same seed fails at other messages")
	}
	if _, _, _, other := play(0.1, 2); slices.Equal(first, other) {
		t.Error("another seed fails at the same messages")
	}
	if failed, _, _, _ := play(0, 1); failed != 0 {
		t.Errorf("a rate of 0 failed %d times", failed)
	}
}

func TestAHandlersOwnErrorIsNotTakenForAMadeFault(t *testing.T) {
	path := filepath.Join(t.TempDir(), "faults.jsonl")
	j, err := OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	own := errors.New("its own")
	h := Faulty(func(context.Context, int, convergo.Event) error { return own }, "points", 1, 1, j)
	worked := 0
	for range 40 {
		if errors.Is(h(t.Context(), 0, convergo.Event{}), own) {
			worked++
		}
	}
	faults, err := ReadJournal(path)
	if err != nil || worked == 0 || len(faults)+worked != 40 {
		t.Errorf("%d own errors and %d made faults of 40, %v", worked, len(faults), err)
	}
}

func TestAFailureAfterTheWorkUndoesIt(t *testing.T) {
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "order.db"), sqlite.Options{Name: "order"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	j, err := OpenJournal(filepath.Join(t.TempDir(), "faults.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	box := outbox.New[convergo.Tx](store, outbox.Config{})
	worked := 0
	h := Faulty(func(ctx context.Context, tx convergo.Tx, _ convergo.Event) error {
		worked++
		return box.Add(ctx, tx, convergo.Event{Key: "k", Type: "T", Topic: "t", Aggregate: convergo.Aggregate{Type: "a", ID: "1"}, Payload: []byte("{}")})
	}, "order", 1, 1, j)
	for worked == 0 {
		err := store.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error { return h(ctx, tx, convergo.Event{}) })
		if !errors.Is(err, errDrill) {
			t.Fatal(err)
		}
	}
	events := -1
	err = store.View(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM outbox_event").Scan(&events)
	})
	if err != nil || events != 0 {
		t.Errorf("%d events of a handler that failed, %v", events, err)
	}
}

// Poison is written by plain SQL; what is derived in its row must be what the engine derives.
func TestPoisonIsAnEventLikeAnyOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "risk.db")
	store, err := sqlite.Open(t.Context(), path, sqlite.Options{Name: "risk"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for n := range 2 {
		if err := Poison(t.Context(), db, "outbox_event", false, n, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if err := Poison(t.Context(), db, "main.outbox_event", false, 1, time.Now()); err == nil {
		t.Error("the same poison twice")
	}
	var key, kind, id string
	var digest, aggregate, payload []byte
	var lane convergo.Lane
	row := db.QueryRowContext(t.Context(), `SELECT e.event_key, e.key_digest, e.aggregate_type, e.aggregate_id, e.aggregate_digest, e.lane, e.payload
		FROM outbox_event e JOIN outbox_pending p ON p.event_id = e.id ORDER BY e.id DESC LIMIT 1`)
	if err := row.Scan(&key, &digest, &kind, &id, &aggregate, &lane, &payload); err != nil {
		t.Fatal(err)
	}
	of := convergo.Aggregate{Type: kind, ID: id}
	wantKey, wantAggregate := convergo.Key(key).Digest(), of.Digest()
	if !slices.Equal(digest, wantKey[:]) || !slices.Equal(aggregate, wantAggregate[:]) || lane != of.Lane() {
		t.Errorf("%s %s: digests or lane %d are not what the engine makes", key, of, lane)
	}
	if !poisoned(kind + "/" + id) {
		t.Errorf("the drill does not know its own poison %s/%s", kind, id)
	}
	if poisoned("order/20261129-ABC") {
		t.Error("takes an order for poison")
	}
	if err := Poison(t.Context(), db, "no_outbox", false, 1, time.Now()); err == nil {
		t.Error("poisoned an outbox that is not there")
	}
}
