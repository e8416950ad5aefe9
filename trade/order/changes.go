package order

import (
	"context"
	"sync"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/machine"
)

// changes wakes those who wait for an order to change. It is a hint in this process only: a waiter also looks by itself
// every now and then, so one that misses a wake-up, or whose order is moved by another process, is late and never wrong.
type changes struct {
	mu      sync.Mutex
	waiting map[string]map[chan struct{}]string // by order: who waits, and for what (see arrived)
}

func newChanges() *changes { return &changes{waiting: map[string]map[chan struct{}]string{}} }

// lookAgain is how long a waiter waits without a wake-up before it looks by itself; each time twice as long, up to lookSeldom.
const (
	lookAgain  = 250 * time.Millisecond
	lookSeldom = time.Second
)

// announce wakes, after the commit, those who wait for what the order has become.
func (c *changes) announce(tx convergo.Tx, no string, state machine.State, payable bool) {
	if after, ok := tx.(convergo.AfterCommit); ok {
		after.AfterCommit(func() { c.wake(no, state, payable) })
	}
}

func (c *changes) wake(no string, state machine.State, payable bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w, where := range c.waiting[no] {
		if !arrived(where, state, payable) {
			continue
		}
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// subscribe returns a channel that gets a value when the order has arrived from now on, and how to end it.
func (c *changes) subscribe(no, where string) (woken <-chan struct{}, done func()) {
	w := make(chan struct{}, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting[no] == nil {
		c.waiting[no] = map[chan struct{}]string{}
	}
	c.waiting[no][w] = where
	return w, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiting[no], w)
		if len(c.waiting[no]) == 0 {
			delete(c.waiting, no)
		}
	}
}

// until calls look until it is satisfied, it fails, the timeout is over or ctx ends; the last two are no errors. It looks
// at least once, and tells look whether the order has been announced to be there, and whether this look is the last.
func (c *changes) until(
	ctx context.Context, no, where string, timeout time.Duration, look func(woken, last bool) (satisfied bool, err error),
) error {
	woken, done := c.subscribe(no, where) // before looking: a change between the look and the wait is not missed
	defer done()
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	pause, announced := lookAgain, false
	tick := time.NewTimer(pause)
	defer tick.Stop()
	for {
		satisfied, err := look(announced, timeout <= 0)
		if satisfied || err != nil || timeout <= 0 {
			return err
		}
		select {
		case <-woken:
			announced = true
		case <-tick.C:
			announced = false
			pause = min(2*pause, lookSeldom)
			tick.Reset(pause)
		case <-deadline.C:
			_, err := look(false, true)
			return err
		case <-ctx.Done():
			return nil
		}
	}
}
