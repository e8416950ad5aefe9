package check

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// Figures are counts of a platform's raw tables.
type Figures struct {
	Orders   map[string]int // by status
	Effects  map[string]int // by kind
	Receipts map[string]int // by class
	// Repeats are notices and requests to the outside that came again and changed nothing.
	Repeats int
	// Deliveries are the events that consumers applied.
	Deliveries []Delivery
	// Returned are the times between the arrival of money that pays no order and its return.
	Returned []time.Duration
}

// Delivery is an event at a consumer.
type Delivery struct {
	Consumer, Key string
	Due, Applied  time.Time
}

// Figures reads the counts.
func (c *Checker) Figures(ctx context.Context) (f Figures, err error) {
	tx, err := c.conn.BeginTx(ctx, nil)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, tx.Rollback()) }()
	if err := prepare(ctx, tx); err != nil {
		return f, err
	}
	statements, _, err := parse("figures.sql")
	if err != nil {
		return f, err
	}
	for name, into := range map[string]*map[string]int{"orders": &f.Orders, "effects": &f.Effects, "receipts": &f.Receipts} {
		if *into, err = counts(ctx, tx, statements[name]); err != nil {
			return f, err
		}
	}
	for _, name := range []string{"repeated notices", "repeated calls"} {
		var n int
		if err := tx.QueryRowContext(ctx, statements[name]).Scan(&n); err != nil {
			return f, err
		}
		f.Repeats += n
	}
	err = each(ctx, tx, statements["deliveries"], func(scan func(...any) error) error {
		var d Delivery
		var due, applied int64
		err := scan(&d.Consumer, &d.Key, &due, &applied)
		d.Due, d.Applied = time.UnixMicro(due).UTC(), time.UnixMicro(applied).UTC()
		f.Deliveries = append(f.Deliveries, d)
		return err
	})
	if err != nil {
		return f, err
	}
	return f, each(ctx, tx, statements["refunded receipts"], func(scan func(...any) error) error {
		var came, left int64
		err := scan(&came, &left)
		f.Returned = append(f.Returned, time.Duration(left-came)*time.Microsecond)
		return err
	})
}

func counts(ctx context.Context, tx *sql.Tx, query string) (map[string]int, error) {
	m := map[string]int{}
	return m, each(ctx, tx, query, func(scan func(...any) error) error {
		var name string
		var n int
		err := scan(&name, &n)
		m[name] = n
		return err
	})
}

// each calls row for every row of the query.
func each(ctx context.Context, tx *sql.Tx, query string, row func(scan func(...any) error) error, args ...any) (err error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}
