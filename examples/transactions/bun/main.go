// Bun writes an order and its event in one transaction of bun: both are there, or neither is.
//
//	DATABASE_URL=postgres://user:password@localhost/shop go run .
package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

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
	bun.BaseModel `bun:"table:shop_order"`

	ID    int64 `bun:",pk,autoincrement"`
	No    string
	Total int64
}

type shop struct {
	db  *bun.DB
	box *outbox.Outbox[convergo.Tx]
}

func run(ctx context.Context, dsn string) error {
	store, err := postgres.Open(ctx, dsn, postgres.Options{}) // makes the engine's tables
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	pool, err := sql.Open("pgx", dsn)
	if err != nil {
		return err
	}
	defer func() { _ = pool.Close() }()
	db := bun.NewDB(pool, pgdialect.New())
	if _, err := db.NewCreateTable().Model((*order)(nil)).IfNotExists().Exec(ctx); err != nil {
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
	return s.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		if _, err := tx.NewInsert().Model(&order{No: no, Total: total}).Exec(ctx); err != nil {
			return err
		}
		// tx.Tx is the *sql.Tx inside: bun's own methods put arguments into the text, at question marks that are not there.
		err := s.box.Add(ctx, tx.Tx, convergo.Event{
			Type: "OrderPlaced", Topic: "shop", Aggregate: convergo.Aggregate{Type: "order", ID: no}, Version: 1,
			Payload: fmt.Appendf(nil, `{"no":%q,"total":%d}`, no, total),
		})
		return errors.Join(err, refusal)
	}) // a relay looks for new events by itself; one in this process does at once after store.Wake()
}

// tell prints what became of an order, and what the database has of it.
func (s shop) tell(ctx context.Context, no string, outcome error) error {
	var orders, events int
	err := s.db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM shop_order WHERE no = ?),
		(SELECT count(*) FROM outbox_event WHERE aggregate_type = 'order' AND aggregate_id = ?)`, no, no).Scan(&orders, &events)
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
