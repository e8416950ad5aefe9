package inventory_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/store/sqlite"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/inventory"
)

// BenchmarkOrders is how many orders of one line a second are held and answered, the inbox's work (dedup row, savepoint)
// included: all for one hot SKU, or spread over 100, one by one or in batches of 100 per commit, durable (synchronous=FULL).
func BenchmarkOrders(b *testing.B) {
	for _, batch := range []int{1, 100} {
		for _, skus := range []int{1, 100} {
			b.Run(fmt.Sprintf("batch=%d/skus=%d", batch, skus), func(b *testing.B) { benchmarkOrders(b, batch, skus) })
		}
	}
}

func benchmarkOrders(b *testing.B, batch, skus int) {
	ctx := context.Background()
	db, err := sqlite.Open(ctx, filepath.Join(b.TempDir(), "inventory.db"), sqlite.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	now := func() time.Time { return time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC) }
	service, err := inventory.New(trade.Deps{DB: db, Now: now, Outbox: outbox.New[convergo.Tx](db, outbox.Config{Now: now})})
	if err != nil {
		b.Fatal(err)
	}
	if err := db.Migrate(ctx, "trade", trade.Migrations()); err != nil {
		b.Fatal(err)
	}
	if err := db.Migrate(ctx, inventory.Name, service.Migrations()); err != nil {
		b.Fatal(err)
	}
	err = db.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		for i := range skus {
			r := inventory.Receipt{SKU: fmt.Sprintf("S-%d", i), Quantity: 1_000_000_000, Key: fmt.Sprint(i)}
			if err := service.Receive(ctx, tx, r, "bench"); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	handle := service.Handlers()[trade.OrderCreated]
	order := func(ctx context.Context, tx convergo.Tx, n int) error {
		no := fmt.Sprintf("O-%d", n)
		e, err := trade.NewEvent(trade.OrderCreated, convergo.Key("OrderCreated:"+no), no, 1, placed(no, line(fmt.Sprintf("S-%d", n%skus), 1)))
		if err != nil {
			return err
		}
		if _, err := db.Mark(ctx, tx, inventory.Name, e, false, now()); err != nil {
			return err
		}
		return db.Nested(ctx, tx, func(ctx context.Context, tx convergo.Tx) error { return handle(ctx, tx, e) })
	}
	b.ResetTimer()
	for done := 0; done < b.N; done += batch {
		err := db.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
			for n := done; n < min(done+batch, b.N); n++ {
				if err := order(ctx, tx, n); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}
