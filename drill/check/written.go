package check

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"strings"
)

const lanes = 64 // a row's lane is the first byte of its aggregate's digest modulo this

// writtenOnce recomputes what outbox rows derive from their texts (digests and lane), and compares the payload that was
// applied with the payload that was written: an event that was changed after it was sent is not the one that took effect.
func (c *Checker) writtenOnce(ctx context.Context, tx *sql.Tx) (Equation, error) {
	e := Equation{Name: "every event is as it was written and applied as it is"}
	marks, err := applied(ctx, tx)
	if err != nil {
		return e, err
	}
	var details []string
	for _, name := range Services() {
		query := `SELECT event_key, key_digest, aggregate_type, aggregate_id, aggregate_digest, CAST(lane AS INTEGER), payload
			FROM "` + name + `".outbox_event`
		err := each(ctx, tx, query, func(scan func(...any) error) error {
			var key, kind, id string
			var digest, aggregate, payload []byte
			var lane int
			if err := scan(&key, &digest, &kind, &id, &aggregate, &lane, &payload); err != nil {
				return err
			}
			e.Checked++
			if why := unlike(key, kind+"/"+id, digest, aggregate, payload, lane, marks[string(digest)]); why != "" {
				e.Broken++
				details = append(details, key+": "+why)
			}
			return nil
		})
		if err != nil {
			return e, err
		}
	}
	e.Detail = c.firstFew(details)
	return e, nil
}

// unlike tells in what the row contradicts itself or those who applied it.
func unlike(key, of string, digest, aggregate, payload []byte, lane int, marks [][]byte) string {
	keySum, aggregateSum, payloadSum := sha256.Sum256([]byte(key)), sha256.Sum256([]byte(of)), sha256.Sum256(payload)
	switch {
	case !bytes.Equal(digest, keySum[:]):
		return "its key is not the one of its digest"
	case !bytes.Equal(aggregate, aggregateSum[:]) || lane != int(aggregateSum[0])%lanes:
		return fmt.Sprintf("digest or lane %d is not the one of aggregate %s", lane, of)
	}
	for _, m := range marks {
		if !bytes.Equal(m, payloadSum[:]) {
			return "was applied with another payload than it has now"
		}
	}
	return ""
}

// applied are the payload digests of all marks, by the event's key digest.
func applied(ctx context.Context, tx *sql.Tx) (map[string][][]byte, error) {
	marks := map[string][][]byte{}
	for _, name := range Services() {
		err := each(ctx, tx, `SELECT key_digest, payload_digest FROM "`+name+`".inbox_mark`, func(scan func(...any) error) error {
			var key, payload []byte
			err := scan(&key, &payload)
			marks[string(key)] = append(marks[string(key)], payload)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return marks, nil
}

// firstFew keeps a detail short; the figure tells how many there are.
func (c *Checker) firstFew(details []string) string {
	if most := max(c.Details, 0); len(details) > most {
		details = append(details[:most:most], fmt.Sprintf("and %d more", len(details)-most))
	}
	return strings.Join(details, "; ")
}
