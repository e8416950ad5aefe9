// Package machine moves entities through their states. A move is one conditional UPDATE that names the state and the
// version it expects, together with a row that says who moved what, when and because of what; everything else than a
// move that happened is told apart by one of three answers. The state machine decides, never the arrival order.
package machine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/convergo/convergo"
)

// State of an entity, for example "PAID". The empty state is the one before an entity exists.
type State string

// Move is an edge of the machine: from any of From to To.
type Move struct {
	Name string // for example "pay"; unique in its machine
	From []State
	To   State
}

// Machine describes the states of one kind of entity and where they are kept. The names are trusted constants of the
// program, they are written into SQL as they are. The row's version is 1 or more when it is inserted and grows by one
// with every move.
type Machine struct {
	Name    string // names the kind in the history, for example "order"
	Table   string // table of the entities
	ID      string // its key column
	State   string // its state column
	Version string // its version column
	Moves   []Move
	// Initial are the states that an entity may begin in. Default: the first From of the first move.
	Initial []State
}

// Answer tells what became of a requested move.
type Answer uint8

// The answers. With C the request's cause and To the move's target:
const (
	// Applied: the entity was in one of the move's From states and is in To now.
	Applied Answer = iota
	// Already: this very move was made before because of C. A repeat; success; nothing was written.
	Already
	// Conflict: the machine does not allow the move from where the entity is, or the entity entered To because of another
	// cause than C (Result.Rival). Nothing was written. What follows is the caller's to decide: a second payment, for
	// instance, has to be given back.
	Conflict
	// Stale: the entity is past To by another way, it never entered To because of another cause, and going there now would
	// be going backwards. Nothing was written and nothing has to be undone.
	Stale
)

func (a Answer) String() string { return [...]string{"applied", "already", "conflict", "stale"}[a] }

// Request asks for a move.
type Request struct {
	ID   string // of the entity
	Move string
	// Cause is what makes two requests for a move the same one: for a payment its transaction id, not the order number. It
	// may be empty when the move can be caused by one thing only. In a machine with cycles it tells one round from the next.
	Cause string
	Key   convergo.Key // of the event or the HTTP request that led to it; for the history
	Actor string       // who; for the history
	At    time.Time    // for the history; required
}

// Result of a request. State, Cause and Version are the entity's after the call, whatever the answer.
type Result struct {
	Answer  Answer
	State   State
	Cause   string // because of which the entity is in State; empty when its history does not tell
	Version int64
	// Rival is set with Conflict when the entity entered the move's To because of another cause: that cause.
	Rival string
}

// Transition is a row of an entity's history.
type Transition struct {
	Machine string
	ID      string
	Move    string
	From    State // empty for the beginning
	To      State
	Cause   string
	Key     convergo.Key
	Actor   string
	Version int64 // of the entity after it
	At      time.Time
}

// ErrNotFound is wrapped when the entity has no row. It carries no verdict: the row may be about to be committed.
var ErrNotFound = errors.New("not found")

// rounds bounds how often a move that lost against a concurrent one is decided anew within one call. Each lost round
// means that somebody else moved the entity, so a handful is plenty.
const rounds = 8

// Apply makes the move, or answers why not. A nil error means that Result says what holds now; tx is usable either way.
//
// Two callers at the same row: both read state and version, both send the UPDATE. The database runs one after the other;
// the second finds a version that is not the one it names, changes no row, reads again and answers by what it then sees.
// A database that locks rows makes the second wait for the first one's commit; it must run at READ COMMITTED, so that
// reading again shows the new row.
func (m Machine) Apply(ctx context.Context, tx convergo.Tx, r Request) (Result, error) {
	move, err := m.check(r)
	if err != nil {
		return Result{}, err
	}
	for range rounds {
		state, version, err := m.read(ctx, tx, r.ID)
		if err != nil {
			return Result{}, err
		}
		allowed := slices.Contains(move.From, state)
		if !allowed || m.Reaches(move.To, state) {
			// Either the move is not possible now, or the entity may have made it before and come back in a circle:
			// the history tells.
			history, err := m.History(ctx, tx, r.ID)
			if err != nil {
				return Result{}, err
			}
			if answer, rival := m.decide(move, r.Cause, state, history); !allowed || answer == Already {
				return Result{Answer: answer, State: state, Cause: causeOf(history, state), Version: version, Rival: rival}, nil
			}
		}
		moved, err := m.update(ctx, tx, r.ID, state, move.To, version)
		if err != nil {
			return Result{}, err
		}
		if moved {
			err := m.record(ctx, tx, r, state, move.To, version+1)
			return Result{Answer: Applied, State: move.To, Cause: r.Cause, Version: version + 1}, err
		}
	}
	return Result{}, fmt.Errorf("%s %s: %s: others moved it %d times meanwhile; try again", m.Name, r.ID, r.Move, rounds)
}

// decide answers for a move that was not made in this call. It is pure.
func (m Machine) decide(move Move, cause string, state State, history []Transition) (answer Answer, rival string) {
	entered, other := false, false // To because of this cause, by whichever move; because of another one
	for _, t := range history {
		switch {
		case t.To != move.To:
		case t.Cause != cause:
			other, rival = true, t.Cause
		case t.Move == move.Name:
			return Already, ""
		default:
			entered = true
		}
	}
	switch {
	case other:
		return Conflict, rival
	case state == move.To && !entered: // a row without history: whose cause it was cannot be known, so it is not ours
		return Conflict, ""
	case m.Reaches(move.To, state):
		return Stale, ""
	}
	return Conflict, ""
}

// Begin records that the entity came into being in state initial: the transition from "" to it. The caller has inserted
// the row in tx; Begin reads its version. r.Move may be empty and is then "begin".
func (m Machine) Begin(ctx context.Context, tx convergo.Tx, r Request, initial State) error {
	if r.Move == "" {
		r.Move = "begin"
	}
	if err := m.checkRequest(r); err != nil {
		return err
	}
	state, version, err := m.read(ctx, tx, r.ID)
	if err != nil {
		return fmt.Errorf("insert the row before Begin: %w", err)
	}
	if state != initial {
		return fmt.Errorf("%s %s begins in %s but its row says %s: %w", m.Name, r.ID, initial, state, convergo.ErrInvalid)
	}
	return m.record(ctx, tx, r, "", initial, version)
}

// History returns the entity's transitions, oldest first; none when there is no such entity.
func (m Machine) History(ctx context.Context, tx convergo.Tx, id string) (history []Transition, err error) {
	rows, err := tx.QueryContext(ctx, selectHistory, m.Name, id)
	if err != nil {
		return nil, fmt.Errorf("history of %s %s: %w", m.Name, id, err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		t, at := Transition{Machine: m.Name, ID: id}, int64(0)
		if err := rows.Scan(&t.Move, &t.From, &t.To, &t.Cause, &t.Key, &t.Actor, &t.Version, &at); err != nil {
			return nil, fmt.Errorf("history of %s %s: %w", m.Name, id, err)
		}
		t.At = convergo.FromMicros(at)
		history = append(history, t)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("history of %s %s: %w", m.Name, id, err)
	}
	return history, nil
}

func (m Machine) check(r Request) (Move, error) {
	if err := m.checkRequest(r); err != nil {
		return Move{}, err
	}
	i := slices.IndexFunc(m.Moves, func(v Move) bool { return v.Name == r.Move })
	if i < 0 {
		return Move{}, fmt.Errorf("machine %s has no move %q: %w", m.Name, r.Move, convergo.ErrInvalid)
	}
	return m.Moves[i], nil
}

func (m Machine) checkRequest(r Request) error {
	switch {
	case r.ID == "":
		return fmt.Errorf("machine %s: move %s: the entity's id is empty: %w", m.Name, r.Move, convergo.ErrInvalid)
	case r.At.IsZero():
		return fmt.Errorf("%s %s: move %s: the time (At) is missing: %w", m.Name, r.ID, r.Move, convergo.ErrInvalid)
	}
	return nil
}

func (m Machine) read(ctx context.Context, tx convergo.Tx, id string) (state State, version int64, err error) {
	err = tx.QueryRowContext(ctx, m.selectRow(), id).Scan(&state, &version)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return "", 0, fmt.Errorf("%s %s: %w", m.Name, id, ErrNotFound)
	case err != nil:
		return "", 0, fmt.Errorf("state of %s %s: %w", m.Name, id, err)
	}
	return state, version, nil
}

func (m Machine) update(ctx context.Context, tx convergo.Tx, id string, from, to State, version int64) (bool, error) {
	res, err := tx.ExecContext(ctx, m.updateRow(), string(to), id, string(from), version)
	if err != nil {
		return false, fmt.Errorf("moving %s %s from %s to %s: %w", m.Name, id, from, to, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return false, fmt.Errorf("moving %s %s from %s to %s: %w", m.Name, id, from, to, err)
	}
	return n == 1, nil
}

func (m Machine) record(ctx context.Context, tx convergo.Tx, r Request, from, to State, version int64) error {
	_, err := tx.ExecContext(ctx, insertTransition,
		m.Name, r.ID, r.Move, string(from), string(to), r.Cause, string(r.Key), r.Actor, version, convergo.Micros(r.At))
	if err != nil {
		return fmt.Errorf("history of %s %s: %w", m.Name, r.ID, err)
	}
	return nil
}

// causeOf is the cause of the last transition into state.
func causeOf(history []Transition, state State) string {
	for _, t := range slices.Backward(history) {
		if t.To == state {
			return t.Cause
		}
	}
	return ""
}
