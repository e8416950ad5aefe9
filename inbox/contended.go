package inbox

import (
	"errors"
	"sync"

	"github.com/convergo/convergo"
)

// contention counts the messages whose transactions the database has begin again too often (convergo.ErrContended). Others are to blame
// for that, so no attempt is spent. But there are handlers that meet somebody each time, or themselves: one that waits for a lock which its
// own second connection holds never comes through. Without an end to it such a message would keep its partition for ever, and
// nobody would be told. So a message that is alone in its transaction is forgiven a few times; from then on each time is an attempt.
type contention struct {
	mu    sync.Mutex
	times map[convergo.Key]int
}

const (
	// forgiven is how often a message's own transaction may be given up without an attempt spent.
	forgiven = 10
	// mostContended bounds the memory; beyond it the counts begin anew.
	mostContended = 1024
)

// outage tells whether an error says that the database is away. Contention is none: others can work, and smaller transactions may.
func outage(err error) bool {
	return convergo.VerdictOf(err) == convergo.Outage && !errors.Is(err, convergo.ErrContended)
}

// blames tells whether the failure of a message's own transaction counts as an attempt at it.
func (c *contention) blames(key convergo.Key, err error) bool {
	if convergo.VerdictOf(err) != convergo.Outage {
		return true
	}
	if outage(err) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.times == nil || len(c.times) >= mostContended {
		c.times = map[convergo.Key]int{}
	}
	c.times[key]++
	return c.times[key] > forgiven
}

// through forgets a message that came through.
func (c *contention) through(key convergo.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.times, key)
}
