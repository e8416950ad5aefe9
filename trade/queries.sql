-- name: InsertEffect :once
-- One statement decides, by the primary key and the unique index on reverses_digest; a concurrent twin waits for this
-- transaction and then changes nothing.
INSERT INTO effect (key_digest, effect_key, order_no, kind, reverses, reverses_digest, cause, detail, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: FindEffect
SELECT effect_key, order_no, kind, reverses, cause, detail, at FROM effect WHERE key_digest = ?

-- name: FindCompensation
SELECT effect_key, order_no, kind, reverses, cause, detail, at FROM effect WHERE reverses_digest = ?

-- name: EffectsOfOrder
SELECT effect_key, order_no, kind, reverses, cause, detail, at FROM effect WHERE order_no = ? ORDER BY at, effect_key

-- name: TransitionsOfOrder
-- entity_id is the order's number or starts with the number and '-': refunds, payment intents. The range ends at '.', the
-- character after '-'.
SELECT at, machine, entity_id, move, from_state, to_state, cause, cause_key, actor
FROM machine_transition WHERE entity_id = ? OR (entity_id > ? AND entity_id < ?) ORDER BY id

-- name: EventsOfOrder
SELECT created_at, event_key, type, aggregate_version FROM outbox_event WHERE aggregate_type = ? AND aggregate_id = ? ORDER BY id
