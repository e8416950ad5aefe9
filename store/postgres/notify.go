package postgres

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/convergo/convergo/store/internal/stored"
)

// notifier tells other processes on the same schema, after commits of ours, that there is something to do, and hears when they
// do. A NOTIFY never stands in a caller's transaction: such transactions commit one after another, each with a sync of its own.
// It is a transaction of its own that waits for no disk, at most one each Options.Notify, whatever the number of commits.
type notifier struct {
	store   *Store
	channel string
	self    string // in our own messages
	told    chan struct{}
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func (s *Store) startNotifier() {
	if s.opts.Notify < 0 || s.opts.ReadOnly {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	digest := sha256.Sum256([]byte(s.opts.Schema)) // a name has 63 bytes at most, a schema's alone can have them all
	s.notify = &notifier{
		store: s, channel: fmt.Sprintf("convergo_%x", digest[:8]), self: stored.NewID(time.Now()), told: make(chan struct{}, 1), cancel: cancel,
	}
	s.notify.running.Go(func() { s.notify.send(ctx) })
	cfg := s.cfg.Copy()
	if s.opts.ListenDSN != "" {
		direct, err := parse(s.opts.ListenDSN)
		if err != nil {
			s.opts.Log.Warn("other processes' wake-ups are not heard", slog.String("store", s.opts.Name), slog.Any("error", err))
			return
		}
		cfg = direct
	} else if s.pooled {
		s.opts.Log.Info("other processes' wake-ups are not heard through a pooler; relays poll", slog.String("store", s.opts.Name))
		return
	}
	cfg.Tracer = nil
	s.notify.running.Go(func() { s.notify.listen(ctx, cfg) })
}

// tell asks for a message to the others. It never blocks.
func (n *notifier) tell() {
	if n == nil {
		return
	}
	select {
	case n.told <- struct{}{}:
	default:
	}
}

func (n *notifier) close() {
	n.cancel()
	n.running.Wait()
}

// pause waits; false when ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (n *notifier) send(ctx context.Context) {
	text := fmt.Sprintf(`BEGIN; SET LOCAL synchronous_commit TO off; NOTIFY %s, '%s'; COMMIT`, n.channel, n.self)
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.told:
		}
		bounded, cancel := context.WithTimeout(ctx, n.store.opts.CommitTimeout)
		err := n.store.reader(bounded, func(c session) error {
			defer n.store.rollback(c)
			return c.raw(func(conn *pgx.Conn) error { _, err := simple(bounded, conn, text); return err })
		})
		cancel()
		if err != nil && ctx.Err() == nil { // a hint: relays find out by themselves
			n.store.opts.Log.DebugContext(ctx, "wake-up of other processes failed", slog.String("store", n.store.opts.Name), slog.Any("error", err))
		}
		if !pause(ctx, n.store.opts.Notify) {
			return
		}
	}
}

// listen keeps a connection of its own open. After it was lost, something may have been missed.
func (n *notifier) listen(ctx context.Context, cfg *pgx.ConnConfig) {
	for first := true; ctx.Err() == nil; first = false {
		err := n.hear(ctx, cfg, first)
		if ctx.Err() != nil {
			return
		}
		n.store.opts.Log.DebugContext(ctx, "listening again", slog.String("store", n.store.opts.Name), slog.Any("error", err))
		if !pause(ctx, time.Second) {
			return
		}
	}
}

func (n *notifier) hear(ctx context.Context, cfg *pgx.ConnConfig, first bool) error {
	conn, err := pgx.ConnectConfig(ctx, cfg.Copy())
	if err != nil {
		return err
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ending)
	}()
	if _, err = simple(ctx, conn, "LISTEN "+n.channel); err != nil {
		return err
	}
	for wake := !first; ; wake = true {
		if wake {
			n.store.wake(&n.store.events)
			n.store.wake(&n.store.calls)
		}
		for {
			message, err := conn.WaitForNotification(ctx)
			if err != nil {
				return err
			}
			if message.Payload != n.self {
				break
			}
		}
	}
}
