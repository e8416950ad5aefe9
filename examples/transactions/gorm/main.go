// Gorm writes an order and its event in one transaction of gorm: both are there, or neither is.
//
//	DATABASE_URL=postgres://user:password@localhost/shop go run .
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"

	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/store/postgres"
)

func main() {
	if err := run(context.Background(), os.Getenv("DATABASE_URL")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type order struct {
	ID    int64
	No    string
	Total int64
}

// TableName is gorm's name of the table.
func (order) TableName() string { return "shop_order" }

type shop struct {
	db  *gorm.DB
	box *outbox.Outbox[convergo.Tx]
}

func run(ctx context.Context, dsn string) error {
	store, err := postgres.Open(ctx, dsn, postgres.Options{}) // makes the engine's tables
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	db, err := gorm.Open(gormpostgres.Open(dsn), &gorm.Config{})
	if err != nil {
		return err
	}
	if err := db.WithContext(ctx).AutoMigrate(&order{}); err != nil {
		return err
	}
	s := shop{db, outbox.New[convergo.Tx](store, outbox.Config{})}

	one, other := rand.Text(), rand.Text()
	err = s.place(ctx, one, 1200, nil)
	if err = s.tell(ctx, one, err); err != nil {
		return err
	}
	err = s.place(ctx, other, 800, errors.New("the card was refused"))
	if err = s.tell(ctx, other, err); err != nil {
		return err
	}
	err = s.place(ctx, one, 1200, nil)
	return s.tell(ctx, one, err)
}

// place writes the order and the event that tells of it. A refusal comes after both were written, and undoes both.
func (s shop) place(ctx context.Context, no string, total int64, refusal error) error {
	return s.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(&order{No: no, Total: total}).Error; err != nil {
			return err
		}
		// ConnPool is the transaction below gorm, which leaves placeholders and arguments as they are.
		err := s.box.Add(ctx, tx.Statement.ConnPool, convergo.Event{
			Type: "OrderPlaced", Topic: "shop", Aggregate: convergo.Aggregate{Type: "order", ID: no}, Version: 1,
			Payload: fmt.Appendf(nil, `{"no":%q,"total":%d}`, no, total),
		})
		return errors.Join(err, refusal)
	}) // a relay looks for new events by itself; one in this process does at once after store.Wake()
}

// tell prints what became of an order, and what the database has of it.
func (s shop) tell(ctx context.Context, no string, outcome error) error {
	var orders, events int
	err := s.db.WithContext(ctx).Raw(`SELECT (SELECT count(*) FROM shop_order WHERE no = ?),
		(SELECT count(*) FROM outbox_event WHERE aggregate_type = 'order' AND aggregate_id = ?)`, no, no).Row().Scan(&orders, &events)
	if err != nil {
		return err
	}
	said := "committed"
	switch {
	case errors.Is(outcome, outbox.ErrDuplicate): // the key defaults to OrderPlaced:{no}:v1
		said = "told before"
	case outcome != nil:
		said = outcome.Error()
	}
	_, err = fmt.Printf("order %s: %s; orders: %d, events: %d\n", no, said, orders, events)
	return err
}
