package sqlite_test

import (
	"context"
	"os"
	"strconv"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/sqlite"
	"github.com/convergo/convergo/store/storetest"
)

// The rows are written by plain SQL, as another program would, and against the contract. Ten of them show what a hundred do
// (CONVERGO_LARGE_ROWS), and take the disk less long.
func TestCaseB07ARelayReadsNoneOfManyRowsThatAreTooLarge(t *testing.T) {
	rows, size := 10, 20_000_000
	if n, err := strconv.Atoi(os.Getenv("CONVERGO_LARGE_ROWS")); err == nil {
		rows = n
	}
	s := open(t, sqlite.Options{Relaxed: true})
	for _, key := range storetest.LargeKeys(rows) {
		a := convergo.Aggregate{Type: "order", ID: string(key)}
		digest, keyDigest := a.Digest(), key.Digest()
		must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO outbox_event
				(created_at, lane, aggregate_version, key_digest, aggregate_digest, topic, type, aggregate_type, aggregate_id, message_id, event_key, payload)
				VALUES (1, ?, 1, ?, ?, 'order', 'OrderChanged', 'order', ?, ?, ?, zeroblob(?))`,
				int64(a.Lane()), keyDigest[:], digest[:], a.ID, "m-"+a.ID, string(key), size)
			if err == nil {
				_, err = s.Insert(ctx, tx, []convergo.Event{{
					Key: key + ":2", MessageID: "n-" + a.ID, Type: "OrderChanged", Topic: "order", Aggregate: a, Version: 2, Payload: []byte("{}"),
				}})
			}
			return err
		}))
	}
	storetest.BuryLargeRows(t, s, s, rows, size)
}

// A text that is too long is treated like a payload: not read, and in the place of it is a name that nobody else has.
func TestARowWithATextThatIsTooLongIsNotRead(t *testing.T) {
	for _, column := range []string{"aggregate_id", "event_key", "message_id", "topic", "type", "aggregate_type", "headers"} {
		t.Run(column, func(t *testing.T) {
			s := open(t, sqlite.Options{})
			must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO outbox_event
					(created_at, lane, key_digest, aggregate_digest, topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload)
					VALUES (1, 7, zeroblob(32), zeroblob(32), 'order', 'T', 'order', 'A', 'm', 'k', '{}', 'p')`)
				if err == nil {
					_, err = tx.ExecContext(ctx, "UPDATE outbox_event SET "+column+" = replace(hex(zeroblob(2500000)), '00', 'ab')")
				}
				return err
			}))
			storetest.BuryLongText(t, s, s, column, 5_000_000)
		})
	}
}

func TestADeadRowWhosePayloadIsMadeToFitIsSentWhenItIsRedriven(t *testing.T) {
	storetest.MendLargeRows(t, open(t, sqlite.Options{}))
}
