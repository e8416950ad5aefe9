package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/sqlite"
	"github.com/convergo/convergo/testlog"
)

// The whole way on a real database and the real clock: three relays, a broker that fails at random, relays that leave
// and come while events are written.
func TestOrderHoldsOnSQLiteWhileRelaysComeAndGo(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	store, err := sqlite.Open(ctx, filepath.Join(t.TempDir(), "order.db"), sqlite.Options{Relaxed: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	b := &broker{answer: func(context.Context, convergo.Event) error {
		if rand.IntN(5) == 0 {
			return errors.New("again")
		}
		return nil
	}}
	cfg := relay.Config{
		Batch: 32, Lease: 15 * time.Second, Poll: 20 * time.Millisecond, MaxAttempts: 1000, // a short lease ends on a loaded machine
		Backoff: convergo.Backoff{Base: 2 * time.Millisecond, Cap: 50 * time.Millisecond},
	}
	relays := []*running{start(store, b, cfg), start(store, b, cfg), start(store, b, cfg)}
	box := outbox.New(store, outbox.Config{})
	const orderCount, each = 40, 12
	for v := 1; v <= each; v++ {
		err := store.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
			for o := range orderCount {
				if err := box.Add(ctx, tx, event(fmt.Sprintf("O-%d", o), v)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if v%4 == 0 {
			relays[v/4-1].stop(t)
			relays[v/4-1] = start(store, b, cfg)
		}
	}
	for !b.has(orderCount * each)() {
		select {
		case <-ctx.Done():
			t.Fatalf("%d of %d events arrived", len(b.keys()), orderCount*each)
		case <-time.After(10 * time.Millisecond):
		}
	}
	for _, r := range relays {
		r.stop(t)
		if s := r.Stats(); s.LeaseLosses != 0 {
			t.Errorf("%+v", s)
		}
	}
	wantOnce(t, b, orderCount*each)
}

// Another program computes lane and digest its own way and writes rows that the contract of outbox_event forbids but the
// table takes. Such a row is its own misfortune: it is sent, also after a failure, and the others of its lane do not wait.
func TestARowWhoseLaneAndDigestAreWrongHoldsUpNobody(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	store, err := sqlite.Open(ctx, filepath.Join(t.TempDir(), "order.db"), sqlite.Options{Relaxed: true})
	if err != nil {
		t.Fatal(err)
	}
	var failures atomic.Int64
	b := &broker{answer: func(_ context.Context, e convergo.Event) error {
		if e.Version == 2 && failures.Add(1) <= 3 {
			return errors.New("again")
		}
		return nil
	}}
	cfg := relay.Config{
		Lease: 3 * time.Second, Poll: 20 * time.Millisecond, Backoff: convergo.Backoff{Base: 2 * time.Millisecond, Cap: 50 * time.Millisecond},
	}
	relays := []*running{start(store, b, cfg), start(store, b, cfg)}
	box := outbox.New(store, outbox.Config{})
	err = store.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		for v := 1; v <= 3; v++ {
			for o := range 64 {
				if err := box.Add(ctx, tx, event(fmt.Sprintf("O-%d", o), v)); err != nil {
					return err
				}
			}
		}
		_, err := tx.ExecContext(ctx, `UPDATE outbox_event SET lane = 63 - lane,
			aggregate_digest = unhex(substr(hex(aggregate_digest), 3) || substr(hex(aggregate_digest), 1, 2))`)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE outbox_pending SET lane = 63 - lane")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for !b.has(3 * 64)() {
		select {
		case <-ctx.Done():
			t.Fatalf("%d of %d events arrived", len(b.keys()), 3*64)
		case <-time.After(10 * time.Millisecond):
		}
	}
	for _, r := range relays {
		r.stop(t)
	}
	wantOnce(t, b, 3*64)
	if backlog, err := store.Backlog(t.Context(), time.Now()); err != nil || backlog.Unfinished() != 0 {
		t.Errorf("%+v, %v: want nothing left", backlog, err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}

// A table of another program may take texts of any length. Those that are short enough to be read with their row are cut in the
// log, however the failure repeats them.
func TestABrokenRowsTextsAreCutInTheLog(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	store, err := sqlite.Open(ctx, filepath.Join(t.TempDir(), "order.db"), sqlite.Options{Relaxed: true})
	if err != nil {
		t.Fatal(err)
	}
	box := outbox.New(store, outbox.Config{})
	err = store.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		if err := box.Add(ctx, tx, event("O-1", 1)); err != nil {
			return err
		}
		huge := strings.Repeat("é", 1_900)
		_, err := tx.ExecContext(ctx, "UPDATE outbox_event SET event_key = ?, aggregate_id = ?, type = ?, topic = ?", huge, huge, huge, huge)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	b := &broker{answer: func(_ context.Context, e convergo.Event) error {
		return convergo.Permanent(fmt.Errorf("publish %s: no such subject %s", e.Key, e.Type))
	}}
	var log testlog.Lines
	r := start(store, b, relay.Config{Poll: 10 * time.Millisecond, Log: slog.New(slog.NewJSONHandler(&log, nil))})
	for r.Stats().Dead == 0 {
		select {
		case <-ctx.Done():
			t.Fatalf("%+v", r.Stats())
		case <-time.After(10 * time.Millisecond):
		}
	}
	r.stop(t)
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	text := log.String()
	if !strings.Contains(text, "an event is dead") || !strings.Contains(text, "éé…") || len(text) > 8000 || !utf8.ValidString(text) {
		t.Errorf("%d bytes of log: %.3000s", len(text), text)
	}
	if last := r.Stats().LastError; len(last) > 3000 {
		t.Errorf("the last error has %d bytes", len(last))
	}
}
