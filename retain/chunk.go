package retain

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// sizes are how many rows a chunk of a job has, where it is not Config.Chunk: rows may be so large that a transaction over that many does
// not end in its time.
type sizes struct {
	mu   sync.Mutex
	less map[string]int // by job
}

func (s *sizes) of(job string, most int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n, ok := s.less[job]; ok {
		return n
	}
	return most
}

// set remembers it for the next rounds too: the rows that were too large may still be there.
func (s *sizes) set(job string, n, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n >= most {
		delete(s.less, job)
		return
	}
	if s.less == nil {
		s.less = map[string]int{}
	}
	s.less[job] = n
}

func (r *Retainer) purge(ctx context.Context, job Job) (total int, err error) {
	if job.Keep <= 0 {
		return 0, nil
	}
	before := r.cfg.Now().Add(-job.Keep)
	for {
		most := r.sizes.of(job.Name, r.cfg.Chunk)
		n, late, err := r.chunk(ctx, job, before, most)
		total += n
		switch {
		case late && most > 1:
			r.cfg.Log.InfoContext(ctx, "a chunk of old rows took too long; a smaller one follows", "job", job.Name, "rows", most, "next", most/2)
		case err != nil:
			return total, err
		case n < most:
			return total, nil
		}
		if !pause(ctx, r.cfg.Pause) {
			return total, ctx.Err()
		}
	}
}

// chunk deletes up to most rows and chooses the size of the next chunk. late: it was ended by its time, and by nothing else. Twice as many
// rows are asked for when they are likely to be done in half of the time; else every second chunk would be late. A chunk that is quick
// because it had few rows says nothing: on MySQL those of a late one stay locked until the server is done with its statement, and are
// passed over until then.
func (r *Retainer) chunk(ctx context.Context, job Job, before time.Time, most int) (n int, late bool, err error) {
	began := r.cfg.Now()
	bounded, cancel := context.WithTimeout(ctx, r.cfg.ChunkTimeout)
	defer cancel()
	n, err = call(bounded, job, before, most)
	switch {
	case err != nil && ctx.Err() == nil && bounded.Err() != nil:
		late = true
		r.sizes.set(job.Name, max(most/2, 1), r.cfg.Chunk)
	case n == most && r.cfg.Now().Sub(began) < r.cfg.ChunkTimeout/4:
		r.sizes.set(job.Name, most*2, r.cfg.Chunk)
	}
	return n, late, err
}

func call(ctx context.Context, job Job, before time.Time, most int) (n int, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("purge panicked: %v", p)
		}
	}()
	return job.Purge(ctx, before, most)
}
