package postgres_test

import (
	"context"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/postgres"
	"github.com/convergo/convergo/store/storetest"
)

// The rows are written by plain SQL, as another program would, and against the contract.
func TestCaseB07ARelayReadsNoneOfAHundredRowsThatAreTooLarge(t *testing.T) {
	const rows, size = 100, 20_000_000
	server := shared(t)
	s := openOn(t, server.DSN("postgres"), postgres.Options{Schema: server.Name("large")})
	for i, key := range storetest.LargeKeys(rows) {
		a := convergo.Aggregate{Type: "order", ID: string(key)}
		digest, keyDigest := a.Digest(), key.Digest()
		payload := "(SELECT payload FROM outbox_event WHERE id = 1)"
		if i == 0 {
			payload = "convert_to(repeat('0123456789', 2000000), 'UTF8')"
		}
		must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO outbox_event
				(created_at, lane, aggregate_version, key_digest, aggregate_digest, topic, type, aggregate_type, aggregate_id, message_id, event_key, payload)
				VALUES (1, ?, 1, ?, ?, 'order', 'OrderChanged', 'order', ?, ?, ?, `+payload+`)`,
				int64(a.Lane()), keyDigest[:], digest[:], a.ID, "m-"+a.ID, string(key))
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
	server := shared(t)
	s := openOn(t, server.DSN("postgres"), postgres.Options{Schema: server.Name("texts")})
	exec(t, s, `INSERT INTO outbox_event
		(created_at, lane, key_digest, aggregate_digest, topic, type, aggregate_type, aggregate_id, message_id, event_key, payload)
		SELECT 1, 7, sha256('k'), decode(repeat('07', 32), 'hex'), 'order', 'T', 'order', repeat('x', 20000000), 'm', 'k', 'p'`)
	storetest.BuryLongText(t, s, s, "aggregate_id", 20_000_000)
}

func TestADeadRowWhosePayloadIsMadeToFitIsSentWhenItIsRedriven(t *testing.T) {
	server := shared(t)
	storetest.MendLargeRows(t, openOn(t, server.DSN("postgres"), postgres.Options{Schema: server.Name("mended")}))
}
