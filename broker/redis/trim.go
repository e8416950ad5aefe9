package redis

import (
	"context"
	"fmt"
	"time"
)

// trims removes old entries from time to time until the broker is closed.
func (b *Broker) trims() {
	if b.cfg.MaxAge == Forever {
		return
	}
	tick := time.NewTicker(b.cfg.TrimEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-b.ctx.Done():
			return
		}
		if _, err := b.Trim(b.ctx); err != nil && b.ctx.Err() == nil {
			b.cfg.Log.Warn("redis broker: old events are not trimmed", "error", err)
		}
	}
}

// Trim removes the entries that are older than Config.MaxAge and that every consumer is done with, and returns how many. A topic that
// nobody has subscribed to is trimmed by age alone.
func (b *Broker) Trim(ctx context.Context) (int64, error) {
	if b.cfg.MaxAge == Forever {
		return 0, nil
	}
	topics, err := b.client.HGetAll(ctx, b.topicsKey()).Result()
	if err != nil {
		return 0, fmt.Errorf("trim: %w", verdict(err))
	}
	now, err := b.client.Time(ctx).Result()
	if err != nil {
		return 0, fmt.Errorf("trim: %w", verdict(err))
	}
	oldest := fmt.Sprintf("%d-0", now.Add(-b.cfg.MaxAge).UnixMilli())
	total := int64(0)
	for topic := range topics {
		for p := range b.cfg.Partitions {
			n, err := b.trim(ctx, topic, p, oldest)
			total += n
			if err != nil && !missing(err) {
				return total, fmt.Errorf("trim %s: %w", b.streamKey(topic, p), verdict(err))
			}
		}
	}
	return total, nil
}

// trim removes the entries before oldest, and before what the slowest group still needs. That moves forward only: a group's
// position never goes back and what it has to acknowledge was read at or before it, so that nothing can need an older entry
// by the time the removal runs.
func (b *Broker) trim(ctx context.Context, topic string, partition int, oldest string) (int64, error) {
	stream := b.streamKey(topic, partition)
	groups, err := b.client.XInfoGroups(ctx, stream).Result()
	if err != nil {
		return 0, err
	}
	keep, slowest := oldest, ""
	for _, g := range groups {
		need := next(g.LastDeliveredID)
		if g.Pending > 0 {
			pending, err := b.client.XPending(ctx, stream, g.Name).Result()
			if err != nil {
				return 0, err
			}
			if pending.Count > 0 {
				need = pending.Lower
			}
		}
		if g.Lag == 0 && g.Pending == 0 {
			continue // it needs nothing that is there, however long ago the last event came
		}
		if compareIDs(need, keep) < 0 {
			keep, slowest = need, g.Name
		}
	}
	if slowest != "" {
		b.cfg.Log.Warn("redis broker: events older than keep-broker (Config.MaxAge) stay, because a consumer is not done with them; of one that is used no more "+
			"destroy the group (XGROUP DESTROY, or Broker.Forget)",
			"topic", topic, "partition", partition, "consumer", slowest)
	}
	// Not by whole blocks, as would be cheaper: a stream that grows slowly would keep its last block for longer than the marks are kept.
	return b.client.XTrimMinID(ctx, stream, keep).Result()
}

// next is the id after id.
func next(id string) string {
	ms, number := parseID(id)
	return fmt.Sprintf("%d-%d", ms, number+1)
}
