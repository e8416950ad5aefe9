package memory

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/convergo/convergo"
)

// consumerName is a partition or a type of a consumer.
type consumerName struct{ consumer, name string }

func (a consumerName) compare(b consumerName) int {
	return cmp.Or(cmp.Compare(a.consumer, b.consumer), cmp.Compare(a.name, b.name))
}

type begunRow struct {
	key   convergo.Digest
	times int
}

// Begin implements inbox.Notes.
func (s *Store) Begin(ctx context.Context, tx *Tx, consumer, part string, key convergo.Key, _ time.Time) (times int, err error) {
	if err := ready(ctx, tx, "begin"); err != nil {
		return 0, err
	}
	at := consumerName{consumer, part}
	row, _ := tx.now.inBegun.get(at)
	if digest := key.Digest(); row.key != digest {
		row = begunRow{key: digest}
	}
	row.times++
	tx.now.inBegun = tx.now.inBegun.put(at, row)
	return row.times, nil
}

// Register implements inbox.Notes.
func (s *Store) Register(ctx context.Context, tx *Tx, consumer string, types []string, now time.Time) error {
	if err := ready(ctx, tx, "register"); err != nil {
		return err
	}
	for _, t := range types {
		at := consumerName{consumer, t}
		seen, _ := tx.now.inTypes.get(at)
		tx.now.inTypes = tx.now.inTypes.put(at, max(seen, convergo.Micros(now)))
	}
	return nil
}

// Registered implements inbox.Notes.
func (s *Store) Registered(ctx context.Context, tx *Tx, consumer string, since time.Time) (types []string, err error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("memory store: registered: %w", err)
	}
	for at, seen := range tx.now.inTypes.from(consumerName{consumer: consumer}) {
		if at.consumer != consumer {
			break
		}
		if seen >= convergo.Micros(since) {
			types = append(types, at.name)
		}
	}
	return types, nil
}
