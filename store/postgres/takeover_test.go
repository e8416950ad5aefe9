package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/postgres"
)

// confirms is a broker that has whatever it is given.
type confirms struct{}

func (confirms) Publish(_ context.Context, events []convergo.Event) []error {
	return make([]error, len(events))
}

// mortal is a store that the relay reaches until dead is closed. Nothing is given back then.
type mortal struct {
	relay.Store
	dead chan struct{}
}

func (m mortal) gone() error {
	select {
	case <-m.dead:
		return errors.New("killed")
	default:
		return nil
	}
}

func (m mortal) Lease(ctx context.Context, req relay.LeaseRequest) ([]relay.Lease, error) {
	if err := m.gone(); err != nil {
		return nil, err
	}
	return m.Store.Lease(ctx, req)
}

func (m mortal) Release(ctx context.Context, owner string, leases []relay.Lease) error {
	if err := m.gone(); err != nil {
		return err
	}
	return m.Store.Release(ctx, owner, leases)
}

// takeOver has one of two relays stop, or die, and tells how long by the server's clock some lane had no living owner but the survivor.
func takeOver(t *testing.T, s *postgres.Store, lease time.Duration, killed bool) time.Duration {
	t.Helper()
	clock := func() (us int64) {
		return number(t, s, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
	}
	lanes := func(name string) int64 {
		return number(t, s, "SELECT COUNT(*) FROM outbox_lane WHERE owner LIKE '"+name+"-%'")
	}
	reach := func(name string, want int64) {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for limit := time.Now().Add(20 * time.Second); lanes(name) != want; <-tick.C {
			if time.Now().After(limit) {
				t.Fatalf("%s has %d lanes, want %d", name, lanes(name), want)
			}
		}
	}
	run := func(name string, store relay.Store) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		r := relay.New(store, confirms{}, relay.Config{Name: name, Lease: lease, Poll: 200 * time.Millisecond})
		go func() { done <- r.Run(ctx) }()
		return func() { cancel(); must(t, <-done) }
	}
	dead := make(chan struct{})
	stop := run("first", mortal{s, dead})
	rest := run("second", s)
	defer rest()
	reach("first", convergo.Lanes/2)
	reach("second", convergo.Lanes/2)
	if killed {
		close(dead)
	} else { // young relays ask for lanes at each poll anyway
		<-time.After(2*lease + lease/3 + 300*time.Millisecond)
	}
	stop()
	began := clock()
	reach("second", convergo.Lanes)
	return time.Duration(clock()-began) * time.Microsecond
}

func number(t *testing.T, s *postgres.Store, query string) (n int64) {
	t.Helper()
	must(t, s.View(t.Context(), func(ctx context.Context, tx convergo.Tx) error { return tx.QueryRowContext(ctx, query).Scan(&n) }))
	return n
}

func TestTheLanesOfARelayThatStopsOrDiesAreTakenOver(t *testing.T) {
	s := open(t, postgres.Options{Notify: -1})
	const lease = 4 * time.Second
	if took := takeOver(t, s, lease, false); took > 600*time.Millisecond {
		t.Errorf("after a stop it took %v, want two polls and a little", took)
	}
	if took := takeOver(t, s, lease, true); took > lease*3/2 {
		t.Errorf("after a death it took %v, want one and a half leases at most", took)
	}
}
