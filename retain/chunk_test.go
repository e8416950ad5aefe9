package retain_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/retain"
	"github.com/convergo/convergo/store/memory"
)

// heavy is rows each of which takes its time to be deleted. A transaction that does not end in time is rolled back.
type heavy struct {
	rows  []time.Duration
	asked []int
}

func (h *heavy) purge(ctx context.Context, _ time.Time, most int) (int, error) {
	h.asked = append(h.asked, most)
	n := min(most, len(h.rows))
	for _, takes := range h.rows[:n] {
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("delete: %w", ctx.Err())
		case <-time.After(takes):
		}
	}
	h.rows = h.rows[n:]
	return n, nil
}

func (h *heavy) job(name string) retain.Job {
	return retain.Job{Name: name, Keep: time.Hour, Purge: h.purge}
}

func TestAChunkThatIsLateIsFollowedByASmallerOneAndTheyGrowBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &heavy{rows: append(slices.Repeat([]time.Duration{time.Second}, 60), slices.Repeat([]time.Duration{time.Millisecond}, 1200)...)}
		r := retain.New([]retain.Job{h.job("discarded")}, retain.Config{})
		deleted, err := r.RunOnce(t.Context())
		if err != nil || deleted["discarded"] != 1260 {
			t.Errorf("%v, %v", deleted, err)
		}
		// 15 rows take half of the 30 s: no more are tried while that is so.
		if want := []int{500, 250, 125, 62, 31, 15, 15, 15, 15, 15, 30, 60, 120, 240, 480, 500}; !slices.Equal(h.asked, want) {
			t.Errorf("asked for %v, want %v", h.asked, want)
		}
		h.rows, h.asked = slices.Repeat([]time.Duration{time.Second}, 20), nil
		if _, err = r.RunOnce(t.Context()); err != nil || h.asked[0] != 500 {
			t.Errorf("the next round asked for %v, %v", h.asked, err)
		}
	})
}

func TestTheSizeOfAChunkIsRememberedForTheNextRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, light := &heavy{rows: slices.Repeat([]time.Duration{11 * time.Second}, 4)}, &heavy{}
		r := retain.New([]retain.Job{h.job("discarded"), light.job("marks")}, retain.Config{Chunk: 10})
		if _, err := r.RunOnce(t.Context()); err != nil || fmt.Sprint(h.asked) != "[10 5 2 2 2]" {
			t.Fatalf("asked for %v, %v", h.asked, err)
		}
		h.rows, h.asked = slices.Repeat([]time.Duration{40 * time.Second}, 2), nil
		deleted, err := r.RunOnce(t.Context()) // one alone takes too long: a person has to know
		if !errors.Is(err, context.DeadlineExceeded) || deleted["discarded"] != 0 || fmt.Sprint(h.asked) != "[2 1]" {
			t.Errorf("%v, %v, asked for %v", deleted, err, h.asked)
		}
		if fmt.Sprint(light.asked) != "[10 10]" {
			t.Errorf("the other job asked for %v", light.asked)
		}
		h.asked = nil
		if _, err := r.RunOnce(t.Context()); err == nil || fmt.Sprint(h.asked) != "[1]" {
			t.Errorf("the round after it asked for %v, %v", h.asked, err)
		}
	})
}

func TestAFailureThatIsNoLatenessMakesNoSmallerChunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("no such table")
		var asked []int
		r := retain.New([]retain.Job{{Name: "sent", Keep: time.Hour, Purge: func(_ context.Context, _ time.Time, most int) (int, error) {
			asked = append(asked, most)
			return 0, broken
		}}}, retain.Config{})
		for range 2 {
			if _, err := r.RunOnce(t.Context()); !errors.Is(err, broken) {
				t.Errorf("%v", err)
			}
		}
		h := &heavy{rows: slices.Repeat([]time.Duration{time.Second}, 100)}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the whole program ends, not the chunk
		defer cancel()
		if _, err := retain.New([]retain.Job{h.job("sent")}, retain.Config{}).RunOnce(ctx); err == nil || len(h.asked) != 1 {
			t.Errorf("asked for %v, %v", h.asked, err)
		}
		if fmt.Sprint(asked) != "[500 500]" {
			t.Errorf("asked for %v", asked)
		}
	})
}

// On the memory store: what a late call has deleted counts, and nothing unfinished leaves.
func TestLateChunksOfAStoreDeleteWhatIsFinishedAndNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		now := time.Now()
		var events []convergo.Event
		for i := range 40 {
			events = append(events, convergo.Event{
				Key: convergo.Key(fmt.Sprint("k-", i)), MessageID: fmt.Sprint("m-", i), Topic: "order", Type: "OrderPaid", Version: 1, CreatedAt: now,
				Aggregate: convergo.Aggregate{Type: "order", ID: fmt.Sprint(i)}, Payload: []byte("{}"),
			})
		}
		ok := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		ok(s.Update(t.Context(), func(ctx context.Context, tx *memory.Tx) error {
			_, err := s.Insert(ctx, tx, events)
			return err
		}))
		leases, err := s.Lease(t.Context(), relay.LeaseRequest{Owner: "r", Term: time.Hour})
		ok(err)
		c, err := s.Claim(t.Context(), leases, 100, now)
		ok(err)
		dead := relay.Settlement{Leases: leases, Now: now}
		for _, p := range c.Events {
			dead.Dead = append(dead.Dead, relay.Failure{Pending: p, Error: "no", Place: "test"})
		}
		ok(s.Settle(t.Context(), dead))
		list, err := s.DeadEvents(t.Context(), 100, 0)
		ok(err)
		for _, d := range list[:30] { // ten stay dead
			ok(s.DiscardEvent(t.Context(), d.ID, "ann", "too large", now))
		}
		var asked []int
		r := retain.New([]retain.Job{{Name: "sent", Keep: time.Minute, Purge: func(ctx context.Context, before time.Time, most int) (n int, err error) {
			asked = append(asked, most)
			for range most { // one row after another, nearly 5 s each: six in the time of a chunk
				<-time.After(5*time.Second - time.Millisecond)
				done := 0
				if done, err = s.PurgeSent(ctx, before, 1); err != nil || done == 0 {
					break
				}
				n += done
			}
			return n, err
		}}}, retain.Config{Chunk: 20})
		<-time.After(2 * time.Minute)
		deleted, err := r.RunOnce(t.Context())
		if err != nil || deleted["sent"] != 30 {
			t.Errorf("%v, %v", deleted, err)
		}
		if fmt.Sprint(asked) != "[20 10 5 5 5 5]" {
			t.Errorf("asked for %v", asked)
		}
		if left, err := s.DeadEvents(t.Context(), 100, 0); err != nil || len(left) != 10 {
			t.Errorf("%d dead events are left, %v", len(left), err)
		}
	})
}
