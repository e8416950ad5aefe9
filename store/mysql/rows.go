package mysql

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/internal/stored"
)

// exec runs a named statement in tx and returns how many rows it affected.
func (s *Store) exec(ctx context.Context, tx convergo.Tx, name string, args ...any) (affected int64, err error) {
	return s.execText(ctx, tx, name, s.sql.Get(name), args...)
}

// execWith is exec of a statement with a list in it: replace are pairs of a mark and what stands for it.
func (s *Store) execWith(ctx context.Context, tx convergo.Tx, name string, replace []string, args ...any) (int64, error) {
	return s.execText(ctx, tx, name, s.with(name, replace...), args...)
}

func (s *Store) execText(ctx context.Context, tx convergo.Tx, name, query string, args ...any) (int64, error) {
	result, err := tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, explain(err))
	}
	affected, err := result.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return affected, nil
}

// once runs an INSERT that does nothing when its key is there already, and returns the new row's id, 0 for none. The number of
// affected rows would not do: in a transaction of the caller's own his connection may count rows that were only found.
func (s *Store) once(ctx context.Context, tx convergo.Tx, name string, args ...any) (id int64, err error) {
	result, err := tx.ExecContext(ctx, s.sql.Get(name), args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, explain(err))
	}
	if id, err = result.LastInsertId(); err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return id, nil
}

// with is a named statement with its marks replaced.
func (s *Store) with(name string, replace ...string) string {
	return strings.NewReplacer(replace...).Replace(s.sql.Get(name))
}

// queryer is a transaction, or the database itself for a statement that needs none.
type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// list collects the rows of a query.
func list[T any](
	ctx context.Context, q queryer, scan func(rows *sql.Rows) (T, error), query string, args ...any,
) (found []T, err error) {
	rows, err := q.QueryContext(ctx, query, args...)
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

func scanID(rows *sql.Rows) (id int64, err error) { return id, rows.Scan(&id) }

func scanBytes(rows *sql.Rows) (b []byte, err error) { return b, rows.Scan(&b) }

// scanEvent reads created_at, deliver_at, aggregate_version, max_attempts, topic, type, aggregate_type, aggregate_id, message_id,
// event_key, headers, payload; before are the columns that stand before those.
func scanEvent(rows *sql.Rows, before ...any) (convergo.Event, error) {
	var (
		e                convergo.Event
		created, deliver int64
		headers          string
	)
	dest := slices.Concat(before, []any{
		&created, &deliver, &e.Version, &e.MaxAttempts, &e.Topic, &e.Type, &e.Aggregate.Type, &e.Aggregate.ID,
		&e.MessageID, &e.Key, &headers, &e.Payload,
	})
	if err := rows.Scan(dest...); err != nil {
		return convergo.Event{}, err
	}
	e.CreatedAt, e.DeliverAt, e.Headers = convergo.FromMicros(created), convergo.FromMicros(deliver), relay.HeadersOf(headers)
	return e, nil
}

// clip cuts an error's text and makes it UTF-8.
func clip(text string) string { return stored.Clip(text, stored.MaxErrorBytes) }

// valid is text without what is not UTF-8, which the database would refuse. Only a message that is no valid event has such.
func valid(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	return strings.ToValidUTF8(text, "")
}

// maxNameColumn is the width of the columns for an aggregate's type and id in inbox_blocked.
const maxNameColumn = 255

// listMost bounds a list that is written into a statement: MariaDB makes a subquery of an IN of a thousand
// (in_predicate_conversion_threshold), and reads the whole table for it.
const listMost = 500

// numbers is a list of numbers as it stands in a statement; one that no row has when there are none.
func numbers(ids []int64) string {
	if len(ids) == 0 {
		return "-1"
	}
	text := make([]byte, 0, 12*len(ids))
	for i, id := range ids {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, id, 10)
	}
	return string(text)
}

// array is a list of numbers as a JSON array.
func array(ids []int64) string {
	if len(ids) == 0 {
		return "[]"
	}
	return "[" + numbers(ids) + "]"
}

// literal is a digest as it stands in a statement.
func literal(d convergo.Digest) string { return "x'" + hex.EncodeToString(d[:]) + "'" }

func literals(digests []convergo.Digest) string {
	texts := make([]string, len(digests))
	for i, d := range digests {
		texts[i] = literal(d)
	}
	return strings.Join(texts, ",")
}

// digestOf takes the bytes of a column that a CHECK keeps at a digest's length.
func digestOf(b []byte) (d convergo.Digest, err error) {
	if len(b) != len(d) {
		return d, fmt.Errorf("a digest of %d bytes, want %d", len(b), len(d))
	}
	copy(d[:], b)
	return d, nil
}

func scanDigest(rows *sql.Rows) (convergo.Digest, error) {
	b, err := scanBytes(rows)
	if err != nil {
		return convergo.Digest{}, err
	}
	return digestOf(b)
}
