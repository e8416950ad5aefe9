package sqlite_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/convergo/convergo"
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
