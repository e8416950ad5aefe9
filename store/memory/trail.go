package memory

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/ops"
)

// Record implements ops.Trail.
func (s *Store) Record(ctx context.Context, a ops.Act) error {
	return s.change(ctx, "record an act", func(tx *Tx) error { tx.record(a); return nil })
}

// Acts implements ops.Trail.
func (s *Store) Acts(ctx context.Context, limit int, after int64) (list []ops.Act, err error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("memory store: acts: %w", err)
	}
	for _, a := range s.committed.Load().acts.from(after + 1) {
		if len(list) >= limit {
			break
		}
		list = append(list, a)
	}
	return list, nil
}

func (tx *Tx) record(a ops.Act) {
	a = a.Cut()
	tx.now.lastAct++
	a.Seq, a.At = tx.now.lastAct, convergo.FromMicros(convergo.Micros(a.At))
	tx.now.acts = tx.now.acts.put(a.Seq, a)
}

func (tx *Tx) recordEvent(e eventRow, what ops.Move, by, reason string, now time.Time) {
	tx.record(ops.Act{Target: ops.TargetEvent, ID: strconv.FormatInt(e.id, 10), Move: what, Key: e.event.Key, By: by, Reason: reason, At: now})
}

func (tx *Tx) recordLetter(d inDeadRow, what ops.Move, by, reason string, now time.Time) {
	tx.record(ops.Act{Target: ops.TargetLetter, ID: d.id, Move: what, Key: d.event.Key, By: by, Reason: reason, At: now})
}
