package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/embedded"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/sqlite"
)

// pay changes the order and says so, in one transaction: both are there after the commit, or neither.
func pay(ctx context.Context, shop *sqlite.Store, box *outbox.Outbox[convergo.Tx], no string) error {
	return shop.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		if _, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'PAID' WHERE no = ?", no); err != nil {
			return err
		}
		return box.Add(ctx, tx, convergo.Event{
			Type: "OrderPaid", Topic: "order", Version: 2,
			Aggregate: convergo.Aggregate{Type: "order", ID: no}, Payload: []byte("alice"),
		})
	})
}

// grant gives the customer points. What it writes commits together with the mark that says: this event is applied.
func grant(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	_, err := tx.ExecContext(ctx, "UPDATE account SET points = points + 12 WHERE user_id = ?", string(e.Payload))
	return err
}

// run carries the shop's events to the broker and applies them in the points database, until ctx ends.
func run(ctx context.Context, shop, points *sqlite.Store, broker *embedded.Broker) error {
	source, err := broker.Subscribe(ctx, "points", []convergo.Subject{{Topic: "order", Type: "OrderPaid"}})
	if err != nil {
		return err
	}
	r := relay.New(shop, broker, relay.Config{})
	shop.OnEvents(r.Wake) // a commit wakes the relay; without it the relay looks once a second
	c := inbox.New[convergo.Tx](points, points, source, inbox.Config{Consumer: "points"})
	c.Handle("OrderPaid", grant)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.Run(ctx) })
	g.Go(func() error { return c.Run(ctx) })
	return g.Wait()
}

// An order is paid in one database, and its customer has his points in another one.
func Example() {
	if err := example(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// stopped
	// alice has 12 points
}

func example() (err error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "convergo-example-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	shop, err := openWith(ctx, filepath.Join(dir, "shop.db"), "CREATE TABLE orders (no TEXT PRIMARY KEY, status TEXT NOT NULL)",
		"INSERT INTO orders VALUES ('O-1', 'CREATED')")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shop.Close()) }()
	points, err := openWith(ctx, filepath.Join(dir, "points.db"), "CREATE TABLE account (user_id TEXT PRIMARY KEY, points INTEGER NOT NULL)",
		"INSERT INTO account VALUES ('alice', 0)")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, points.Close()) }()
	broker, err := embedded.Open(ctx, embedded.Config{Dir: filepath.Join(dir, "broker")})
	if err != nil {
		return err
	}
	defer broker.Close()

	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- run(running, shop, points, broker) }()
	if err := pay(ctx, shop, outbox.New[convergo.Tx](shop, outbox.Config{}), "O-1"); err != nil {
		return err
	}
	balance := int64(0)
	for balance == 0 && err == nil {
		err = points.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
			return tx.QueryRowContext(ctx, "SELECT points FROM account WHERE user_id = 'alice'").Scan(&balance)
		})
	}
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		return err
	}
	fmt.Printf("stopped\nalice has %d points\n", balance)
	return nil
}

func openWith(ctx context.Context, path string, statements ...string) (*sqlite.Store, error) {
	s, err := sqlite.Open(ctx, path, sqlite.Options{})
	if err != nil {
		return nil, err
	}
	err = s.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		for _, statement := range statements {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}
