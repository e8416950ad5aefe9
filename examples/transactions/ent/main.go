// Ent writes an order, with ent's generated client, and its event in one transaction: both are there, or neither is. ent's own Tx lacks a
// method that the outbox asks for; so the transaction is begun below ent, and gets a client of its own.
//
//	DATABASE_URL=postgres://user:password@localhost/shop go run .
//
// The folder ent is generated.
package main

//go:generate go run -mod=mod entgo.io/ent/cmd/ent generate --target ./ent ./schema

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/examples/transactions/ent/ent"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/store/postgres"
)

func main() {
	if err := run(context.Background(), os.Getenv("DATABASE_URL")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type shop struct {
	db  *sql.DB
	box *outbox.Outbox[convergo.Tx]
}

func run(ctx context.Context, dsn string) error {
	store, err := postgres.Open(ctx, dsn, postgres.Options{}) // makes the engine's tables
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	client := ent.NewClient(ent.Driver(entsql.OpenDB(dialect.Postgres, db)))
	if err := client.Schema.Create(ctx); err != nil {
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
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after a commit
	client := ent.NewClient(ent.Driver(entsql.NewDriver(dialect.Postgres, entsql.Conn{ExecQuerier: tx})))
	if err := client.Order.Create().SetNo(no).SetTotal(total).Exec(ctx); err != nil {
		return err
	}
	err = s.box.Add(ctx, tx, convergo.Event{
		Type: "OrderPlaced", Topic: "shop", Aggregate: convergo.Aggregate{Type: "order", ID: no}, Version: 1,
		Payload: fmt.Appendf(nil, `{"no":%q,"total":%d}`, no, total),
	})
	if err = errors.Join(err, refusal); err != nil {
		return err
	}
	return tx.Commit() // a relay looks for new events by itself; one in this process does at once after store.Wake()
}

// tell prints what became of an order, and what the database has of it.
func (s shop) tell(ctx context.Context, no string, outcome error) error {
	var orders, events int
	err := s.db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM shop_order WHERE no = $1),
		(SELECT count(*) FROM outbox_event WHERE aggregate_type = 'order' AND aggregate_id = $1)`, no).Scan(&orders, &events)
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
