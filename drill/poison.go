package drill

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// poisonPrefix marks the aggregate and the key of poison events.
const poisonPrefix = "POISON-"

// Poison writes an event that no handler can read into a service's outbox, by plain SQL, as a program in any language
// would: the paid order of a shop that does not write JSON.
func Poison(ctx context.Context, database string, n int, now time.Time) (err error) {
	uri := url.URL{Scheme: "file", Opaque: url.PathEscape(database), RawQuery: "mode=rw&_txlock=immediate&_pragma=busy_timeout(10000)"}
	db, err := sql.Open("sqlite", uri.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	id := fmt.Sprintf("%s%d", poisonPrefix, n)
	key, aggregate := sha256.Sum256([]byte("OrderPaid:"+id)), sha256.Sum256([]byte("order/"+id))
	_, err = db.ExecContext(ctx, `INSERT INTO outbox_event
		(message_id, event_key, key_digest, topic, type, aggregate_type, aggregate_id, aggregate_digest, lane, payload, created_at)
		VALUES (?, ?, ?, 'order', 'OrderPaid', 'order', ?, ?, ?, ?, ?)`,
		"message-"+id, "OrderPaid:"+id, key[:], id, aggregate[:], aggregate[0]%64, []byte("{not JSON"), now.UnixMicro())
	if err != nil {
		return fmt.Errorf("poison: %w", err)
	}
	return nil
}

// poisoned tells whether an aggregate ("order/POISON-1") is one of ours.
func poisoned(aggregate string) bool { return strings.Contains(aggregate, "/"+poisonPrefix) }
