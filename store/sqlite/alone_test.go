package sqlite_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/sqlite"
)

func TestWhoIsAloneNeedNotWaitForTheLeasesOfTheDeadAndTheDeadCannotSettle(t *testing.T) {
	ctx := t.Context()
	s, err := sqlite.Open(ctx, filepath.Join(t.TempDir(), "a.db"), sqlite.Options{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	old, err := s.Lease(ctx, relay.LeaseRequest{Owner: "dead", Term: time.Hour})
	if err != nil || len(old) != convergo.Lanes {
		t.Fatalf("%d lanes: %v", len(old), err)
	}
	err = s.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		_, err := s.Calls().Add(ctx, tx, outside.Call{Kind: "k", Key: "1", Payload: []byte("{}")}, time.Now())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, _, err := s.Calls().Claim(ctx, []string{"k"}, time.Hour, 1, time.Now()); err != nil || len(got) != 1 {
		t.Fatalf("claimed %d: %v", len(got), err)
	}
	if err := s.BreakLeases(ctx); err != nil {
		t.Fatal(err)
	}
	if now, err := s.Lease(ctx, relay.LeaseRequest{Owner: "alone", Term: time.Hour}); err != nil || len(now) != convergo.Lanes {
		t.Errorf("after the break the survivor has %d lanes: %v", len(now), err)
	}
	got, _, err := s.Calls().Claim(ctx, []string{"k"}, time.Hour, 1, time.Now())
	if err != nil || len(got) != 1 || !got[0].Ambiguous {
		t.Errorf("after the break the call is claimed as %+v: %v", got, err)
	}
	if err := s.Settle(ctx, relay.Settlement{Leases: old[:1], Now: time.Now()}); !errors.Is(err, relay.ErrLeaseLost) {
		t.Errorf("the dead relay settles: %v", err)
	}
}

func TestAnOperatorsChangeCommitsWithTheTransactionThatItWasMadeIn(t *testing.T) {
	ctx := t.Context()
	s, err := sqlite.Open(ctx, filepath.Join(t.TempDir(), "a.db"), sqlite.Options{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	now := time.Now()
	add := func(ctx context.Context, tx convergo.Tx) error {
		return outbox.New[convergo.Tx](s, outbox.Config{}).Add(ctx, tx, convergo.Event{
			Type: "Moved", Topic: "order", Aggregate: convergo.Aggregate{Type: "order", ID: "O-1"}, Version: 1, Payload: []byte("{}"),
		})
	}
	if err := s.Update(ctx, add); err != nil {
		t.Fatal(err)
	}
	leases, err := s.Lease(ctx, relay.LeaseRequest{Owner: "r", Term: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	claim, err := s.Claim(ctx, leases, 10, now)
	if err != nil || len(claim.Events) != 1 {
		t.Fatalf("claimed %d: %v", len(claim.Events), err)
	}
	dead := relay.Settlement{Leases: leases, Dead: []relay.Failure{{Pending: claim.Events[0], Error: "e", Place: "p"}}, HoldAggregate: true, Now: now}
	if err := s.Settle(ctx, dead); err != nil {
		t.Fatal(err)
	}
	letters, err := s.DeadEvents(ctx, 10, 0)
	if err != nil || len(letters) != 1 {
		t.Fatalf("dead: %d, %v", len(letters), err)
	}
	refused := errors.New("the request is refused")
	for _, end := range []error{refused, nil} {
		err := s.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
			return s.Nested(ctx, tx, func(ctx context.Context, _ convergo.Tx) error {
				if err := s.RedriveEvent(ctx, letters[0].ID, "ann", "", now); err != nil {
					return err
				}
				return end
			})
		})
		if !errors.Is(err, end) {
			t.Fatalf("redrive in a transaction: %v", err)
		}
		left, err := s.DeadEvents(ctx, 10, 0)
		if want := map[bool]int{true: 1, false: 0}[end != nil]; err != nil || len(left) != want {
			t.Errorf("after a transaction that ended with %v there are %d dead events: %v", end, len(left), err)
		}
	}
}
