package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/internal/stored"
)

// exec runs a named statement in tx and returns how many rows it affected. Arguments are int64, string, []byte only. In a
// transaction of ours it goes past database/sql's conversions.
func (s *Store) exec(ctx context.Context, tx convergo.Tx, name string, args ...any) (affected int64, err error) {
	query := s.sql.Get(name)
	if own, ok := tx.(*Tx); ok {
		if err = own.usable(ctx); err != nil {
			return 0, err
		}
		err = own.conn.Raw(func(conn any) error {
			affected, err = conn.(*cachingConn).exec(query, args)
			return err
		})
	} else {
		var result sql.Result
		if result, err = tx.ExecContext(ctx, query, args...); err == nil {
			affected, err = result.RowsAffected()
		}
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, s.explain(err))
	}
	return affected, nil
}

var errNamed = errors.New("an argument is named")

// convertAndExec runs a caller's statement without database/sql, with the same conversions. An argument with a name is left
// to database/sql.
func (c *cachingConn) convertAndExec(query string, args []any) (driver.Result, error) {
	c.args = c.args[:0]
	defer func() { clear(c.args) }()
	for i, a := range args {
		switch a := a.(type) {
		case sql.NamedArg, sql.Out:
			return nil, errNamed
		case int64, string, []byte: // nothing to convert
			c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: a})
		default:
			v, err := driver.DefaultParameterConverter.ConvertValue(a)
			if err != nil {
				return nil, fmt.Errorf("sql: converting argument $%d type: %w", i+1, err)
			}
			c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: v})
		}
	}
	return c.ExecContext(context.Background(), query, c.args)
}

// exec runs a statement without database/sql.
func (c *cachingConn) exec(query string, args []any) (int64, error) {
	c.args = c.args[:0]
	for i, a := range args {
		c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	result, err := c.ExecContext(context.Background(), query, c.args)
	clear(c.args)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// each calls row with every row of a query, without database/sql. values is used again for the next row; the texts and
// bytes in it are the row's own.
func (c *cachingConn) each(ctx context.Context, query string, row func(values []driver.Value) error, args ...any) error {
	c.args = c.args[:0]
	for i, a := range args {
		c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	rows, err := c.QueryContext(ctx, query, c.args)
	clear(c.args)
	if err != nil {
		return err
	}
	values := make([]driver.Value, len(rows.Columns()))
	for {
		if err = rows.Next(values); err != nil {
			break
		}
		if err = row(values); err != nil {
			break
		}
	}
	closing := rows.Close()
	if errors.Is(err, io.EOF) {
		return closing
	}
	return err
}

// each is cachingConn.each in the transaction.
func (t *Tx) each(ctx context.Context, query string, row func(values []driver.Value) error, args ...any) error {
	if err := t.usable(ctx); err != nil {
		return err
	}
	return t.conn.Raw(func(conn any) error { return conn.(*cachingConn).each(t.context(ctx), query, row, args...) })
}

// reader runs fn with a reading connection; outside a transaction every statement has a snapshot of its own.
func (s *Store) reader(ctx context.Context, fn func(c *cachingConn) error) error {
	conn, err := s.read.Conn(ctx)
	if err != nil {
		return s.reading(err)
	}
	defer func() { _ = conn.Close() }()
	err = conn.Raw(func(c any) error { return fn(c.(*cachingConn)) })
	if err != nil {
		return s.explain(err)
	}
	return nil
}

// snapshot runs fn with a reading connection in one transaction.
func (s *Store) snapshot(ctx context.Context, fn func(c *cachingConn) error) error {
	return s.reader(ctx, func(c *cachingConn) error {
		if _, err := c.exec("BEGIN", nil); err != nil {
			return err
		}
		err := fn(c)
		if _, ending := c.exec("COMMIT", nil); err == nil {
			err = ending
		}
		return err
	})
}

// list collects the rows of a query on tx.
func list[T any](
	ctx context.Context, tx convergo.Tx, scan func(rows *sql.Rows) (T, error), query string, args ...any,
) (found []T, err error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closing := rows.Close(); err == nil {
			err = closing
		}
	}()
	for rows.Next() {
		item, err := scan(rows)
		if errors.Is(err, stored.ErrEnough) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		found = append(found, item)
	}
	return found, rows.Err()
}

// eventColumns is how many columns eventOf reads: created_at, deliver_at, aggregate_version, max_attempts, topic, type,
// aggregate_type, aggregate_id, message_id, event_key, headers, payload.
const eventColumns = 12

// eventOf builds the event out of its columns as the driver gives them.
func eventOf(v []driver.Value) (e convergo.Event, err error) {
	if len(v) != eventColumns {
		return e, fmt.Errorf("an event's row has %d columns, not %d", len(v), eventColumns)
	}
	e = convergo.Event{
		CreatedAt: convergo.FromMicros(integer(v[0])), DeliverAt: convergo.FromMicros(integer(v[1])), Version: integer(v[2]),
		MaxAttempts: int(integer(v[3])), Topic: text(v[4]), Type: text(v[5]), Aggregate: convergo.Aggregate{Type: text(v[6]), ID: text(v[7])},
		MessageID: text(v[8]), Key: convergo.Key(text(v[9])), Payload: bytesOf(v[11]),
	}
	e.Headers = relay.HeadersOf(text(v[10]))
	return e, nil
}

// eventOfTexts builds the event out of created_at, deliver_at, aggregate_version, max_attempts, payload and the texts as
// ClaimLanes joins them; ok is false when they cannot be told apart.
func eventOfTexts(v []driver.Value) (e convergo.Event, ok bool) {
	joined := text(v[5])
	if strings.Count(joined, "\x1f") != 6 {
		return e, false
	}
	next := func() (part string) {
		part, joined, _ = strings.Cut(joined, "\x1f")
		return part
	}
	e = convergo.Event{
		CreatedAt: convergo.FromMicros(integer(v[0])), DeliverAt: convergo.FromMicros(integer(v[1])), Version: integer(v[2]),
		MaxAttempts: int(integer(v[3])), Payload: bytesOf(v[4]),
	}
	e.Topic, e.Type, e.Aggregate.Type, e.Aggregate.ID, e.MessageID, e.Key = next(), next(), next(), next(), next(), convergo.Key(next())
	e.Headers = relay.HeadersOf(joined)
	return e, true
}

// scanEvent is eventOf for database/sql; before are the columns that stand before the event's.
func scanEvent(rows *sql.Rows, before ...any) (convergo.Event, error) {
	var (
		values [eventColumns]driver.Value
		dest   = before
	)
	for i := range values {
		dest = append(dest, &values[i])
	}
	if err := rows.Scan(dest...); err != nil {
		return convergo.Event{}, err
	}
	return eventOf(values[:])
}

// SQLite keeps any type in any column; a foreign writer may have put a number where text belongs, or text where bytes.
func integer(v driver.Value) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case float64:
		return int64(v)
	}
	return 0
}

func text(v driver.Value) string {
	switch v := v.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case nil:
		return ""
	}
	return fmt.Sprint(v)
}

func bytesOf(v driver.Value) []byte {
	switch v := v.(type) {
	case []byte:
		return v
	case string:
		return []byte(v)
	}
	return nil
}

func clip(text string) string { return stored.Clip(text, stored.MaxErrorBytes) }

// appendID and appendDigest build JSON arrays by hand: a claim or a settlement makes one per batch.
func appendID(list []byte, id int64) []byte {
	if len(list) == 0 {
		list = append(list, '[')
	} else {
		list[len(list)-1] = ','
	}
	return append(strconv.AppendInt(list, id, 10), ']')
}

func idList(ids []int64) string {
	var list []byte
	for _, id := range ids {
		list = appendID(list, id)
	}
	return string(list)
}

func appendDigest(list []byte, d convergo.Digest) []byte {
	if len(list) == 0 {
		list = append(list, '[')
	} else {
		list[len(list)-1] = ','
	}
	list = append(list, '"')
	list = hex.AppendEncode(list, d[:])
	return append(list, '"', ']')
}
