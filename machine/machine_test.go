package machine_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/machine"
	"github.com/convergo/convergo/store/sqlite"
)

// order is the order of requirements E2 with the refunds of the platform.
var order = machine.Machine{
	Name: "order", Table: "orders", ID: "order_no", State: "status", Version: "version",
	Moves: []machine.Move{
		{Name: "pay", From: []machine.State{"CREATED"}, To: "PAID"},
		{Name: "cancel", From: []machine.State{"CREATED"}, To: "CANCELED"},
		{Name: "ship", From: []machine.State{"PAID"}, To: "SHIPPED"},
		{Name: "complete", From: []machine.State{"SHIPPED"}, To: "COMPLETED"},
		{Name: "refund", From: []machine.State{"PAID", "SHIPPED", "COMPLETED"}, To: "REFUNDING"},
		{Name: "refunded", From: []machine.State{"REFUNDING"}, To: "REFUNDED"},
	},
}

// door goes in circles.
var door = machine.Machine{
	Name: "door", Table: "orders", ID: "order_no", State: "status", Version: "version",
	Moves: []machine.Move{
		{Name: "open", From: []machine.State{"SHUT"}, To: "OPEN"},
		{Name: "shut", From: []machine.State{"OPEN"}, To: "SHUT"},
	},
}

var at = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

type db struct {
	*sqlite.Store
	t testing.TB
}

func open(t testing.TB) db {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "order.db"), sqlite.Options{Name: "order", Relaxed: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	d := db{s, t}
	d.update(func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx,
			"CREATE TABLE orders (order_no VARCHAR(64) PRIMARY KEY, status VARCHAR(20) NOT NULL, version BIGINT NOT NULL)")
		return err
	})
	return d
}

func (d db) update(fn func(ctx context.Context, tx convergo.Tx) error) {
	d.t.Helper()
	if err := d.Update(d.t.Context(), fn); err != nil {
		d.t.Fatal(err)
	}
}

func (d db) begin(m machine.Machine, id string, state machine.State) {
	d.t.Helper()
	d.update(func(ctx context.Context, tx convergo.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders (order_no, status, version) VALUES (?, ?, 1)", id, string(state)); err != nil {
			return err
		}
		return m.Begin(ctx, tx, machine.Request{ID: id, Cause: "token-1", Actor: "user", At: at}, state)
	})
}

// apply makes moves, each "move/cause".
func (d db) apply(m machine.Machine, id string, moves ...string) (r machine.Result) {
	d.t.Helper()
	for _, move := range moves {
		name, cause, _ := strings.Cut(move, "/")
		d.update(func(ctx context.Context, tx convergo.Tx) (err error) {
			r, err = m.Apply(ctx, tx, machine.Request{ID: id, Move: name, Cause: cause, Key: convergo.Key("key:" + move), Actor: "test", At: at})
			return err
		})
	}
	return r
}

func (d db) history(m machine.Machine, id string) (h []machine.Transition) {
	d.t.Helper()
	d.update(func(ctx context.Context, tx convergo.Tx) (err error) { h, err = m.History(ctx, tx, id); return err })
	return h
}

func result(answer machine.Answer, state machine.State, cause string, version int64, rival string) machine.Result {
	return machine.Result{Answer: answer, State: state, Cause: cause, Version: version, Rival: rival}
}

func TestTheFourAnswers(t *testing.T) {
	d := open(t)
	for i, c := range []struct {
		name  string
		m     machine.Machine
		made  []string
		asked string
		want  machine.Result
	}{
		{"first time", order, nil, "pay/T-1", result(machine.Applied, "PAID", "T-1", 2, "")},
		{"same cause again", order, []string{"pay/T-1"}, "pay/T-1", result(machine.Already, "PAID", "T-1", 2, "")},
		{"same cause when it has gone on", order, []string{"pay/T-1", "ship/S-1"}, "pay/T-1", result(machine.Already, "SHIPPED", "S-1", 3, "")},
		{"other cause", order, []string{"pay/T-1"}, "pay/T-2", result(machine.Conflict, "PAID", "T-1", 2, "T-1")},
		{"other cause when it has gone on", order, []string{"pay/T-1", "ship/S-1"}, "pay/T-2",
			result(machine.Conflict, "SHIPPED", "S-1", 3, "T-1")},
		{"other cause after a refund", order, []string{"pay/T-1", "refund/R-1", "refunded/R-1"}, "pay/T-2",
			result(machine.Conflict, "REFUNDED", "R-1", 4, "T-1")},
		{"not allowed from there", order, []string{"cancel/timeout"}, "pay/T-1", result(machine.Conflict, "CANCELED", "timeout", 2, "")},
		{"the other way round", order, []string{"pay/T-1"}, "cancel/timeout", result(machine.Conflict, "PAID", "T-1", 2, "")},
		{"too early", order, []string{"pay/T-1"}, "complete/S-1", result(machine.Conflict, "PAID", "T-1", 2, "")},
		{"passed it by another way", order, []string{"pay/T-1", "refund/R-1"}, "ship/S-1", result(machine.Stale, "REFUNDING", "R-1", 3, "")},
		{"round again", door, []string{"open/1", "shut/1"}, "open/2", result(machine.Applied, "OPEN", "2", 4, "")},
		{"a repeat of the first round", door, []string{"open/1", "shut/1"}, "open/1", result(machine.Already, "SHUT", "1", 3, "")},
		{"a repeat while in the second round", door, []string{"open/1", "shut/1", "open/2"}, "open/1",
			result(machine.Already, "OPEN", "2", 4, "")},
		{"no cause given", order, []string{"pay/T-1", "ship"}, "ship", result(machine.Already, "SHIPPED", "", 3, "")},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := fmt.Sprint("O-", i)
			d.begin(c.m, id, c.m.Moves[0].From[0])
			d.apply(c.m, id, c.made...)
			before := len(d.history(c.m, id))
			got := d.apply(c.m, id, c.asked)
			if got != c.want {
				t.Errorf("got %v %+v, want %v %+v", got.Answer, got, c.want.Answer, c.want)
			}
			written := len(d.history(c.m, id)) - before
			if want := map[bool]int{true: 1, false: 0}[got.Answer == machine.Applied]; written != want {
				t.Errorf("%v wrote %d transitions", got.Answer, written)
			}
		})
	}
}

func TestARowWithoutHistoryIsNobodysCause(t *testing.T) {
	d := open(t)
	d.update(func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO orders (order_no, status, version) VALUES ('old', 'PAID', 7)")
		return err
	})
	if got := d.apply(order, "old", "pay/T-1"); got != (machine.Result{Answer: machine.Conflict, State: "PAID", Version: 7}) {
		t.Errorf("got %+v", got)
	}
}

// B28: return page and callback at the same time, thrice: one transition, all four callers are told success.
func TestCaseB28FourCallersOneTransition(t *testing.T) {
	d := open(t)
	d.begin(order, "O-100", "CREATED")
	answers := make(chan machine.Result, 4)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { answers <- d.apply(order, "O-100", "pay/T-1") })
	}
	all.Wait()
	close(answers)
	count := map[machine.Answer]int{}
	for r := range answers {
		count[r.Answer]++
		if r.State != "PAID" || r.Cause != "T-1" {
			t.Errorf("a caller was told %+v", r)
		}
	}
	if count[machine.Applied] != 1 || count[machine.Already] != 3 {
		t.Errorf("answers: %v", count)
	}
	if h := d.history(order, "O-100"); len(h) != 2 {
		t.Errorf("history: %+v", h)
	}
}

// attempts of a payment, B29: a failure is valid only from unpaid states.
var attempt = machine.Machine{
	Name: "attempt", Table: "orders", ID: "order_no", State: "status", Version: "version",
	Moves: []machine.Move{
		{Name: "succeed", From: []machine.State{"OPEN"}, To: "PAID"},
		{Name: "fail", From: []machine.State{"OPEN"}, To: "FAILED"},
		{Name: "refund", From: []machine.State{"PAID"}, To: "REFUNDED"},
	},
}

func TestCaseB29ALateFailureUndoesNothing(t *testing.T) {
	d := open(t)
	d.begin(attempt, "paid", "OPEN")
	d.apply(attempt, "paid", "succeed/pi-B")
	if r := d.apply(attempt, "paid", "fail/pi-A"); r.Answer != machine.Conflict || r.State != "PAID" || r.Cause != "pi-B" {
		t.Errorf("late failure: %+v", r)
	}
	d.apply(attempt, "paid", "refund/R-1")
	for cause, want := range map[string]machine.Answer{"pi-B": machine.Already, "pi-C": machine.Conflict} {
		if r := d.apply(attempt, "paid", "succeed/"+cause); r.Answer != want || r.State != "REFUNDED" {
			t.Errorf("late approval %s: %+v", cause, r)
		}
	}
}

func TestReport25AFailureNeverDowngradesAPaidOrder(t *testing.T) {
	d := open(t)
	for i, made := range [][]string{{"pay/T-1"}, {"pay/T-1", "ship/S-1"}, {"pay/T-1", "refund/R-1"}, {"pay/T-1", "ship/S-1", "complete/S-1"}} {
		id := fmt.Sprint("O-", i)
		d.begin(order, id, "CREATED")
		before := d.apply(order, id, made...)
		if r := d.apply(order, id, "cancel/payment failed"); r.Answer == machine.Applied || r.State != before.State {
			t.Errorf("%v: %+v", made, r)
		}
	}
}

// Facts 3.7: the release came first and left a tombstone; the hold that comes later is refused.
func TestAnActionThatFindsATombstoneIsRefused(t *testing.T) {
	hold := machine.Machine{
		Name: "hold", Table: "orders", ID: "order_no", State: "status", Version: "version",
		Moves:   []machine.Move{{Name: "release", From: []machine.State{"HELD"}, To: "RELEASED"}},
		Initial: []machine.State{"HELD", "RELEASED"},
	}
	d := open(t)
	d.begin(hold, "O-1", "RELEASED")
	if r := d.apply(hold, "O-1", "release/cancel"); r.Answer != machine.Conflict || r.State != "RELEASED" || r.Rival != "token-1" {
		t.Errorf("got %+v", r)
	}
}

func TestCloseAgainstPayHasOneWinnerInEveryRound(t *testing.T) {
	rounds := 1000
	if testing.Short() {
		rounds = 100
	}
	d := open(t)
	won := map[string]int{}
	for i := range rounds {
		id := fmt.Sprint("O-", i)
		d.begin(order, id, "CREATED")
		var both sync.WaitGroup
		var pay, cancel machine.Result
		moves := []func(){func() { pay = d.apply(order, id, "pay/T-1") }, func() { cancel = d.apply(order, id, "cancel/timeout") }}
		if i%2 == 1 {
			slices.Reverse(moves)
		}
		for _, move := range moves {
			both.Go(move)
		}
		both.Wait()
		switch {
		case pay.Answer == machine.Applied && cancel.Answer == machine.Conflict && cancel.State == "PAID" && cancel.Cause == "T-1":
			won["pay"]++
		case cancel.Answer == machine.Applied && pay.Answer == machine.Conflict && pay.State == "CANCELED" && pay.Cause == "timeout":
			won["cancel"]++
		default:
			t.Fatalf("round %d: pay %+v, cancel %+v", i, pay, cancel)
		}
		if h := d.history(order, id); len(h) != 2 {
			t.Fatalf("round %d: history %+v", i, h)
		}
	}
	if won["pay"]+won["cancel"] != rounds {
		t.Errorf("winners: %v", won)
	}
}

// A rival moves the row between the read and the UPDATE: the loser reads again and answers by what it sees then. On
// SQLite writers are serial, so the rival acts from inside the same transaction.
func TestALostRaceIsDecidedByTheNewState(t *testing.T) {
	d := open(t)
	answers := map[string]machine.Answer{"pay/T-1": machine.Already, "pay/T-2": machine.Conflict, "cancel/user": machine.Conflict}
	for rival, want := range answers {
		d.begin(order, rival, "CREATED")
		d.update(func(ctx context.Context, tx convergo.Tx) error {
			name, cause, _ := strings.Cut(rival, "/")
			r, err := order.Apply(ctx, &racing{Tx: tx, act: func() error {
				_, err := order.Apply(ctx, tx, machine.Request{ID: rival, Move: name, Cause: cause, At: at})
				return err
			}}, machine.Request{ID: rival, Move: "pay", Cause: "T-1", At: at})
			if err == nil && (r.Answer != want || r.Cause != cause) {
				t.Errorf("against %s: %v %+v", rival, r.Answer, r)
			}
			return err
		})
	}
}

// The rival goes in a circle: the state is what it was, and yet it is not the row that was read.
func TestACircleBetweenReadAndUpdateIsNoticed(t *testing.T) {
	d := open(t)
	for cause, want := range map[string]machine.Result{
		"1": result(machine.Already, "SHUT", "1", 3, ""), "2": result(machine.Applied, "OPEN", "2", 4, ""),
	} {
		d.begin(door, cause, "SHUT")
		d.update(func(ctx context.Context, tx convergo.Tx) error {
			got, err := door.Apply(ctx, &racing{Tx: tx, act: func() error {
				_, opened := door.Apply(ctx, tx, machine.Request{ID: cause, Move: "open", Cause: "1", At: at})
				_, shut := door.Apply(ctx, tx, machine.Request{ID: cause, Move: "shut", Cause: "1", At: at})
				return errors.Join(opened, shut)
			}}, machine.Request{ID: cause, Move: "open", Cause: cause, At: at})
			if got != want {
				t.Errorf("cause %s: %v %+v", cause, got.Answer, got)
			}
			return err
		})
	}
}

// racing lets somebody act before the first UPDATE.
type racing struct {
	convergo.Tx
	act func() error
}

func (r *racing) ExecContext(ctx context.Context, query string, args ...any) (res sql.Result, err error) {
	if act := r.act; act != nil && strings.HasPrefix(query, "UPDATE") {
		r.act = nil
		if err := act(); err != nil {
			return nil, err
		}
	}
	return r.Tx.ExecContext(ctx, query, args...)
}

// rank of a state: no order ever goes to a lower one.
var rank = map[machine.State]int{"CREATED": 0, "PAID": 1, "SHIPPED": 2, "COMPLETED": 3, "REFUNDING": 4, "REFUNDED": 5, "CANCELED": 6}

func TestNoOrderOfEventsMovesAnOrderBackwards(t *testing.T) {
	d := open(t)
	n := 0
	rapid.Check(t, func(r *rapid.T) {
		n++
		id := fmt.Sprint("O-", n)
		d.begin(order, id, "CREATED")
		state, applied := machine.State("CREATED"), map[string]bool{}
		events := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) string {
			return rapid.SampledFrom([]string{"pay", "cancel", "ship", "complete", "refund", "refunded"}).Draw(r, "move") +
				"/" + rapid.SampledFrom([]string{"1", "2"}).Draw(r, "cause")
		}), 1, 20).Draw(r, "events")
		for _, e := range events {
			got := d.apply(order, id, e)
			switch {
			case rank[got.State] < rank[state]:
				r.Fatalf("%s moved it from %s back to %s", e, state, got.State)
			case got.Answer == machine.Applied && applied[e]:
				r.Fatalf("%s applied twice", e)
			case got.Answer == machine.Already && !applied[e]:
				r.Fatalf("%s is said to have been made already", e)
			case got.Answer != machine.Applied && got.State != state:
				r.Fatalf("%s: %v, but the state went from %s to %s", e, got.Answer, state, got.State)
			case got.Answer != machine.Already && applied[e] && got.Answer != machine.Applied:
				r.Fatalf("the repeat of %s is answered by %v", e, got.Answer)
			}
			state = got.State
			applied[e] = applied[e] || got.Answer == machine.Applied
		}
		// The history is a path from the beginning to where the order is, one version a step.
		at := machine.State("")
		for i, step := range d.history(order, id) {
			if step.From != at || step.Version != int64(i+1) {
				r.Fatalf("step %d of the history: %+v after %s", i, step, at)
			}
			at = step.To
		}
		if at != state {
			r.Fatalf("the history ends in %s, the order is %s", at, state)
		}
	})
}

func TestHistoryTellsEverything(t *testing.T) {
	d := open(t)
	d.begin(order, "O-1", "CREATED")
	d.apply(order, "O-1", "pay/T-1")
	want := machine.Transition{
		Machine: "order", ID: "O-1", Move: "pay", From: "CREATED", To: "PAID", Cause: "T-1", Key: "key:pay/T-1", Actor: "test",
		Version: 2, At: at,
	}
	h := d.history(order, "O-1")
	if len(h) != 2 || h[0].Move != "begin" || h[0].From != "" || h[1] != want {
		t.Errorf("history: %+v", h)
	}
}

func TestARolledBackMoveNeverHappened(t *testing.T) {
	d := open(t)
	d.begin(order, "O-1", "CREATED")
	undo := errors.New("undo")
	err := d.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		if _, err := order.Apply(ctx, tx, machine.Request{ID: "O-1", Move: "pay", Cause: "T-1", At: at}); err != nil {
			return err
		}
		return undo
	})
	if !errors.Is(err, undo) {
		t.Fatal(err)
	}
	if r := d.apply(order, "O-1", "pay/T-1"); r.Answer != machine.Applied {
		t.Errorf("got %+v", r)
	}
}

func TestWrongRequestsAreRefusedByName(t *testing.T) {
	d := open(t)
	d.begin(order, "O-1", "CREATED")
	for name, c := range map[string]struct {
		r    machine.Request
		want error
	}{
		"has no move \"fly\"":  {machine.Request{ID: "O-1", Move: "fly", At: at}, convergo.ErrInvalid},
		"id is empty":          {machine.Request{Move: "pay", At: at}, convergo.ErrInvalid},
		"time (At) is missing": {machine.Request{ID: "O-1", Move: "pay"}, convergo.ErrInvalid},
		"order O-9":            {machine.Request{ID: "O-9", Move: "pay", At: at}, machine.ErrNotFound},
	} {
		d.update(func(ctx context.Context, tx convergo.Tx) error {
			_, err := order.Apply(ctx, tx, c.r)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), name) || convergo.VerdictOf(err) != convergo.Again {
				t.Errorf("%s: %v", name, err)
			}
			return nil
		})
	}
	d.update(func(ctx context.Context, tx convergo.Tx) error {
		for _, id := range []string{"O-1", "O-9"} {
			if err := order.Begin(ctx, tx, machine.Request{ID: id, At: at}, "PAID"); err == nil {
				t.Errorf("Begin of %s in a state that it is not in", id)
			}
		}
		return nil
	})
}
