package mysql_test

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/store/storetest"
	"github.com/convergo/convergo/testserver"
)

// The rows are written by plain SQL, as another program would, and against the contract. Ten of them show what a hundred do
// (CONVERGO_LARGE_ROWS), and take the disk less long.
func TestCaseB07ARelayReadsNoneOfManyRowsThatAreTooLarge(t *testing.T) {
	rows := 10
	if n, err := strconv.Atoi(os.Getenv("CONVERGO_LARGE_ROWS")); err == nil {
		rows = n
	}
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		size := 20_000_000
		if strings.HasSuffix(t.Name(), "/mariadb") {
			size = 15_000_000 // the server makes no larger value: max_allowed_packet
		}
		s := open(t, fresh(t, server), mysql.Options{})
		for _, key := range storetest.LargeKeys(rows) {
			a := convergo.Aggregate{Type: "order", ID: string(key)}
			digest, keyDigest := a.Digest(), key.Digest()
			must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO outbox_event
					(created_at, lane, aggregate_version, key_digest, aggregate_digest, topic, type, aggregate_type, aggregate_id, message_id, event_key, payload)
					VALUES (1, ?, 1, ?, ?, 'order', 'OrderChanged', 'order', ?, ?, ?, REPEAT('x', ?))`,
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
	})
}
