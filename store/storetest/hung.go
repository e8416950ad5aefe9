package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/relay"
)

// HungServer is a database server that can stand still: its process is stopped, and its connections stay.
type HungServer struct {
	Pause, Resume func() error
	// AtCommit has f run once, right before the store's next COMMIT is sent.
	AtCommit func(f func())
	// Commit is how long the store waits for the answer to a COMMIT; short, for each of the tries takes as long.
	Commit time.Duration
}

// RunHung checks a store whose server stops in the middle: nothing waits longer than its context and the bound of a COMMIT, an
// unknown outcome is an outage, and doing the same again makes one of it, whether the first was kept or not.
func RunHung[TX any](t *testing.T, b Backend[TX], server HungServer) {
	h := &hung[TX]{rig: start(t, func(*testing.T) Backend[TX] { return b }), server: server}
	t.Run("a COMMIT without an answer is an outage, and repeating it is harmless", func(t *testing.T) { h.on(t).commits() })
	t.Run("a rollback ends", func(t *testing.T) { h.on(t).rollback() })
	t.Run("every method ends with its context and works afterwards", func(t *testing.T) { h.on(t).methods() })
}

type hung[TX any] struct {
	*rig[TX]
	server HungServer
	paused bool
}

func (h *hung[TX]) on(t *testing.T) *hung[TX] {
	r := *h.rig
	r.T = t
	return &hung[TX]{rig: &r, server: h.server}
}

func (h *hung[TX]) pause() {
	h.Helper()
	h.paused = true
	h.Cleanup(h.resume)
	if err := h.server.Pause(); err != nil {
		h.Error(err)
	}
}

func (h *hung[TX]) resume() {
	h.Helper()
	if h.paused {
		h.must(h.server.Resume())
	}
	h.paused = false
}

// slack is what a loaded machine may add.
const slack = 5 * time.Second

// within runs fn and complains when it takes longer.
func (h *hung[TX]) within(what string, most time.Duration, fn func() error) error {
	h.Helper()
	began := time.Now()
	err := fn()
	if took := time.Since(began); took > most+slack {
		h.Errorf("%s took %v, its bound is %v", what, took, most)
	}
	return err
}

// cut runs a writing call whose COMMIT gets no answer, and then the same call again.
func (h *hung[TX]) cut(what string, call func() error) {
	h.Helper()
	h.server.AtCommit(h.pause)
	err := h.within(what, h.server.Commit, call)
	if convergo.VerdictOf(err) != convergo.Outage {
		h.Errorf("%s: without an answer to its COMMIT it is no outage: %v", what, err)
	}
	if !h.paused {
		h.Errorf("%s: it never came to a COMMIT", what)
	}
	h.resume()
	if err := call(); err != nil {
		h.Errorf("%s, again: %v", what, err)
	}
}

func (h *hung[TX]) commits() {
	insert := func(e convergo.Event) func() error {
		return func() error {
			return h.Store.Update(h.ctx, func(ctx context.Context, tx TX) error {
				_, err := h.Outbox.Insert(ctx, tx, []convergo.Event{e})
				return err
			})
		}
	}
	h.cut("write events", insert(event(order("cut"), 1)))
	leases := h.lease("cut")
	c := h.claim(leases, 100, 0)
	equalLists(h, "claimed: each once", keys(c.Events), string(event(order("cut"), 1).Key))
	h.cut("settle", func() error {
		return h.Relay.Settle(h.ctx, relay.Settlement{Leases: leases, Failed: []relay.Failure{h.fail(c.Events[0], 0)}, Now: h.base})
	})
	c = h.claim(leases, 100, 0)
	equal(h, "claimed after the failure", len(c.Events), 1)
	equal(h, "attempts", c.Events[0].Attempts, 1)
	h.settle(leases, 0, settleSent(c.Events))
	equal(h, "claimed at the end", len(h.claim(leases, 100, 0).Events), 0)

	h.cut("mark", func() error {
		return h.Store.Update(h.ctx, func(ctx context.Context, tx TX) error {
			m, err := h.Inbox.Mark(ctx, tx, "cut", event(order("m"), 1), false, h.base)
			if err != nil || m != inbox.Fresh {
				return err
			}
			return h.Add(ctx, tx, "cut", 1)
		})
	})
	equal(h, "the handler's effect", h.value("cut"), 1)
	h.cut("bury", func() error {
		return h.Store.Update(h.ctx, func(ctx context.Context, tx TX) error {
			f := inbox.Failure{Event: event(order("b"), 1), Attempts: 1, Error: "bad", Place: "handler"}
			_, err := h.Parking.Bury(ctx, tx, "cut", f, true, h.base)
			return err
		})
	})
	equal(h, "dead letters", len(h.letters("cut")), 1)
	one := call(1)
	h.cut("add a call", func() error {
		return h.Store.Update(h.ctx, func(ctx context.Context, tx TX) error {
			_, err := h.Outside.Add(ctx, tx, one, h.base)
			return err
		})
	})
	claimed := h.claimCalls(0)
	equal(h, "calls", len(claimed), 1)
	h.cut("finish a call", func() error {
		return h.Store.Update(h.ctx, func(ctx context.Context, tx TX) error {
			_, err := h.Outside.Finish(ctx, tx, claimed[0], outside.Outcome{State: outside.Done}, h.base)
			return err
		})
	})
	h.cut("record a request", func() error {
		return h.Store.Update(h.ctx, func(ctx context.Context, tx TX) error {
			fresh, err := h.Requests.RecordRequest(ctx, tx, h.request("cut", "k"))
			if err != nil || !fresh {
				return err
			}
			return h.Add(ctx, tx, "request", 1)
		})
	})
	equal(h, "the request's effect", h.value("request"), 1)
}

// rollback: the server stops while a transaction is open whose function then gives up.
func (h *hung[TX]) rollback() {
	err := h.within("a rollback", h.server.Commit, func() error {
		return h.Store.Update(h.ctx, func(ctx context.Context, tx TX) error {
			if err := h.Add(ctx, tx, "rollback", 1); err != nil {
				return err
			}
			h.pause()
			return errWanted
		})
	})
	if !errors.Is(err, errWanted) {
		h.Errorf("the function's error became %v", err)
	}
	h.resume()
	h.update(func(ctx context.Context, tx TX) error { return h.Add(ctx, tx, "rollback", 1) }) // waits for the row's lock
	equal(h, "what was rolled back", h.value("rollback"), 1)
}

// methods: each is called with a context that ends.
func (h *hung[TX]) methods() {
	const patience = 300 * time.Millisecond
	h.must(h.ExpireLeases(h.ctx))
	leases := h.lease("methods")
	write := func(fn func(ctx context.Context, tx TX) error) func(ctx context.Context) error {
		return func(ctx context.Context) error { return h.Store.Update(ctx, fn) }
	}
	calls := map[string]func(ctx context.Context) error{
		"Update": write(func(ctx context.Context, tx TX) error { return h.Add(ctx, tx, "methods", 1) }),
		"View":   func(ctx context.Context) error { _, err := h.Value(ctx, "methods"); return err },
		"Lease": func(ctx context.Context) error {
			_, err := h.Relay.Lease(ctx, relay.LeaseRequest{Owner: "methods", Held: leases, RenewOnly: true, Term: longTerm})
			return err
		},
		"Claim":   func(ctx context.Context) error { _, err := h.Relay.Claim(ctx, leases, 10, h.base); return err },
		"Release": func(ctx context.Context) error { return h.Relay.Release(ctx, "nobody", leases[:1]) },
		"Due":     func(ctx context.Context) error { _, _, err := h.Parking.Due(ctx, "methods", 10, h.base); return err },
		"Calls": func(ctx context.Context) error {
			_, _, err := h.Outside.Claim(ctx, []string{kind}, longTerm, 10, h.base)
			return err
		},
		"Backlog": func(ctx context.Context) error { _, err := h.Operators.Backlog(ctx, h.base); return err },
		"Dead":    func(ctx context.Context) error { _, err := h.Operators.DeadEvents(ctx, 10, 0); return err },
		"Letters": func(ctx context.Context) error { _, err := h.Operators.DeadLetters(ctx, "methods", 10, ""); return err },
		"Replay": func(ctx context.Context) error {
			_, err := h.Operators.Replay(ctx, h.base.Add(time.Hour), h.base)
			return err
		},
		"PurgeSent": func(ctx context.Context) error {
			_, err := h.Operators.PurgeSent(ctx, h.base.Add(-time.Hour), 10)
			return err
		},
		"PurgeMarks": func(ctx context.Context) error {
			_, err := h.Operators.PurgeMarks(ctx, h.base.Add(-time.Hour), 10)
			return err
		},
	}
	names := make([]string, 0, len(calls))
	for name, call := range calls {
		names = append(names, name)
		if err := call(h.ctx); err != nil {
			h.Errorf("%s: %v", name, err)
		}
	}
	slices.Sort(names)
	h.pause()
	for _, name := range names {
		err := h.within(name, patience+h.server.Commit, func() error {
			ctx, cancel := context.WithTimeout(h.ctx, patience)
			defer cancel()
			return calls[name](ctx)
		})
		if err == nil {
			h.Errorf("%s: a server that stands still has answered", name)
		}
	}
	h.resume()
	for _, name := range names {
		if err := h.within(fmt.Sprint(name, " afterwards"), 0, func() error { return calls[name](h.ctx) }); err != nil {
			h.Errorf("%s after the server went on: %v", name, err)
		}
	}
}
