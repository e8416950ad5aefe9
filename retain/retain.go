// Package retain lets old rows leave: sent events, inbox rows, finished calls, recorded answers. It deletes in small
// chunks with pauses between them, so that writers never wait for it.
package retain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/convergo/convergo"
)

// Forever as Job.Keep: the rows never leave.
const Forever time.Duration = -1

// NoPause as Config.Pause: the next chunk follows at once.
const NoPause time.Duration = -1

// Job is one kind of rows that leave.
type Job struct {
	Name string // for logs and results, for example "outbox.sent"; unique among the jobs
	// Keep is how long rows stay. Zero and Forever: for ever; a forgotten setting must not empty a table.
	Keep time.Duration
	// Purge deletes up to most rows that are older than before, in one short transaction, and returns how many it
	// deleted. It must leave alone whatever is not finished, whatever its age.
	Purge func(ctx context.Context, before time.Time, most int) (int, error)
}

// Config of a Retainer; the zero value is fit for production.
type Config struct {
	Every time.Duration // between two rounds, ± 10 % so that processes spread out; default 10 min
	Chunk int           // rows per transaction at most, fewer after a call of Purge that took too long; default 500
	Pause time.Duration // between two chunks, for the writers that wait; default 20 ms; NoPause for none
	// ChunkTimeout bounds one call of Purge; default 30 s. After one that it ended the next asks for half the rows, down to one; after
	// quick ones for twice as many again.
	ChunkTimeout time.Duration
	Now          func() time.Time // default time.Now
	Log          *slog.Logger     // default discards
}

// Retainer runs the jobs.
type Retainer struct {
	jobs  []Job
	cfg   Config
	sizes sizes
	logs  map[string]*convergo.FailureLog // by job
}

// New returns a retainer of the jobs.
func New(jobs []Job, cfg Config) *Retainer {
	if cfg.Every <= 0 {
		cfg.Every = 10 * time.Minute
	}
	if cfg.Chunk <= 0 {
		cfg.Chunk = 500
	}
	if cfg.Pause == 0 {
		cfg.Pause = 20 * time.Millisecond
	}
	if cfg.ChunkTimeout <= 0 {
		cfg.ChunkTimeout = 30 * time.Second
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	r := &Retainer{jobs: jobs, cfg: cfg, logs: make(map[string]*convergo.FailureLog, len(jobs))}
	for _, job := range jobs {
		r.logs[job.Name] = &convergo.FailureLog{}
	}
	return r
}

// Run makes a round every Config.Every until ctx ends; then it returns nil. A job that fails is logged and tried again
// in the next round; it never keeps another job from running. The first round starts at a random moment of the first
// tenth of Every, so that a fleet that starts together does not delete together.
func (r *Retainer) Run(ctx context.Context) error {
	wait := time.Duration(rand.Float64() * float64(r.cfg.Every) / 10)
	for pause(ctx, wait) {
		// Each failure was logged where it happened, and the next round tries again.
		_, _ = r.RunOnce(ctx)
		wait = time.Duration(float64(r.cfg.Every) * (0.9 + 0.2*rand.Float64()))
	}
	return nil
}

// RunOnce makes one round: each job deletes in chunks until fewer rows came back than were asked for. It returns the rows deleted
// by job name and the joined errors of the jobs that failed; those of a job that failed half-way count too. When ctx
// ends it stops between two chunks, and that is part of the error.
func (r *Retainer) RunOnce(ctx context.Context) (map[string]int, error) {
	deleted := make(map[string]int, len(r.jobs))
	var failures []error
	for _, job := range r.jobs {
		if ctx.Err() != nil {
			return deleted, errors.Join(append(failures, ctx.Err())...)
		}
		n, err := r.purge(ctx, job)
		deleted[job.Name] += n
		if err != nil {
			failures = append(failures, fmt.Errorf("retain %s: after %d rows: %w", job.Name, n, err))
			if failures, within, worth := r.logs[job.Name].Failed(r.cfg.Now()); worth {
				r.cfg.Log.ErrorContext(ctx, "old rows stay until the next round", "job", job.Name, "deleted", n, "failures", failures,
					"for", within.Round(time.Millisecond), "error", err)
			}
			continue
		}
		if failures, within, worth := r.logs[job.Name].Worked(r.cfg.Now()); worth {
			r.cfg.Log.InfoContext(ctx, "old rows leave again", "job", job.Name, "failures", failures, "after", within.Round(time.Millisecond))
		}
		if n > 0 {
			r.cfg.Log.InfoContext(ctx, "old rows deleted", "job", job.Name, "deleted", n)
		}
	}
	return deleted, errors.Join(failures...)
}

// pause waits for d and tells whether ctx is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// ErrWindow is wrapped by the errors of CheckWindow.
var ErrWindow = errors.New("the dedup window is too short")

// CheckWindow refuses an inbox whose rows leave before the broker forgets the messages: such a message, delivered again,
// would be applied twice. inboxKeep is the Job.Keep of the inbox rows; brokerMaxAge is the longest time after which a
// message can still arrive: the stream's maximum age, plus the age of dead letters that are still redriven, plus the
// longest replay. Zero or less means for ever, for both.
func CheckWindow(inboxKeep, brokerMaxAge time.Duration) error {
	switch {
	case inboxKeep <= 0:
		return nil
	case brokerMaxAge <= 0:
		return fmt.Errorf("%w: inbox rows are kept for %v and messages for ever: "+
			"limit the age of messages, or keep the rows for ever", ErrWindow, inboxKeep)
	case inboxKeep <= brokerMaxAge:
		return fmt.Errorf("%w: inbox rows are kept for %v and messages for %v: "+
			"keep the rows longer, or the messages shorter", ErrWindow, inboxKeep, brokerMaxAge)
	}
	return nil
}
