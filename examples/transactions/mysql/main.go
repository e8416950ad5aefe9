// Mysql is databasesql on MySQL or MariaDB: another driver and store, the same API.
//
//	MYSQL_DSN='user:password@tcp(localhost:3306)/shop' go run ./examples/transactions/mysql
package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"

	_ "github.com/go-sql-driver/mysql" // the driver "mysql"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/store/mysql"
)

func main() {
	if err := run(context.Background(), os.Getenv("MYSQL_DSN")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type shop struct {
	db  *sql.DB
	box *outbox.Outbox[convergo.Tx]
}

func run(ctx context.Context, dsn string) error {
	store, err := mysql.Open(ctx, dsn, mysql.Options{}) // makes the engine's tables
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	_, err = db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS shop_order (
		id BIGINT AUTO_INCREMENT PRIMARY KEY, no VARCHAR(100) NOT NULL, total BIGINT NOT NULL)`)
	if err != nil {
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
	if _, err := tx.ExecContext(ctx, "INSERT INTO shop_order (no, total) VALUES (?, ?)", no, total); err != nil {
		return err
	}
	err = s.box.Add(ctx, tx, convergo.Event{
		Type: "OrderPlaced", Topic: "shop", Aggregate: convergo.Aggregate{Type: "order", ID: no}, Version: 1,
		Payload: fmt.Appendf(nil, `{"no":%q,"total":%d}`, no, total),
	})
	if err = errors.Join(err, refusal); err != nil {
		return err
	}
	return tx.Commit() // a deadlock (MySQL's error 1213) may come from any of these statements: roll back and place again
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
