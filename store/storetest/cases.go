package storetest

import (
	"context"
	"fmt"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

// newsRepeated: a payment channel repeats the news of one payment, each time as another message, in transactions that do more.
func newsRepeated[TX any](r *rig[TX]) {
	for i := range 3 {
		e := event(order("O-102"), 1)
		e.MessageID = fmt.Sprintf("notify-%d", i)
		r.update(func(ctx context.Context, tx TX) error {
			fresh, err := r.Outbox.Insert(ctx, tx, []convergo.Event{e})
			if err != nil || !fresh[0] {
				return err
			}
			return r.Add(ctx, tx, "told", 1)
		})
		r.update(func(ctx context.Context, tx TX) error {
			marked, err := r.Inbox.Mark(ctx, tx, "shipping", e, true, r.base)
			if err != nil || marked != inbox.Fresh {
				return err
			}
			return r.Add(ctx, tx, "shipped", 1)
		})
	}
	equal(r, "events told", r.value("told"), 1)
	equal(r, "parcels", r.value("shipped"), 1)
	equal(r, "claimed", len(r.claim(r.lease("a"), 10, 0).Events), 1)
}
