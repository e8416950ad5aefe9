package drill

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"strings"
	"time"
)

// poisonPrefix marks the aggregate and the key of poison events.
const poisonPrefix = "POISON-"

// Poison writes an event that no handler can read into a service's outbox, by plain SQL, as a program in any language
// would: the paid order of a shop that does not write JSON. table is outbox_event, with its schema where it has one; numbered says
// that parameters are $1, $2, … and not question marks.
func Poison(ctx context.Context, db *sql.DB, table string, numbered bool, n int, now time.Time) error {
	id := fmt.Sprintf("%s%d", poisonPrefix, n)
	key, aggregate := sha256.Sum256([]byte("OrderPaid:"+id)), sha256.Sum256([]byte("order/"+id))
	query := "INSERT INTO " + table + ` (message_id, event_key, key_digest, topic, type, aggregate_type, aggregate_id, aggregate_digest, lane, payload, created_at)
		VALUES (?, ?, ?, 'order', 'OrderPaid', 'order', ?, ?, ?, ?, ?)`
	for i := 1; numbered && strings.Contains(query, "?"); i++ {
		query = strings.Replace(query, "?", fmt.Sprintf("$%d", i), 1)
	}
	_, err := db.ExecContext(ctx, query,
		"message-"+id, "OrderPaid:"+id, key[:], id, aggregate[:], aggregate[0]%64, []byte("{not JSON"), now.UnixMicro())
	if err != nil {
		return fmt.Errorf("poison: %w", err)
	}
	return nil
}

// poisoned tells whether an aggregate ("order/POISON-1") is one of ours.
func poisoned(aggregate string) bool { return strings.Contains(aggregate, "/"+poisonPrefix) }
