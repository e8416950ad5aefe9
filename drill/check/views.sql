-- Temporary views over all services, made once after the files are attached.

-- name: event
-- sent = 1: no narrow row says that it is still to be done, and nobody discarded it.
CREATE TEMP VIEW event AS /*union:SELECT 'SCHEMA' AS service, id, event_key, key_digest, type, aggregate_id, created_at, deliver_at,
  NOT EXISTS (SELECT 1 FROM SCHEMA.outbox_pending p WHERE p.event_id = e.id) AND NOT EXISTS (SELECT 1 FROM SCHEMA.outbox_delayed d WHERE d.event_id = e.id)
  AND NOT EXISTS (SELECT 1 FROM SCHEMA.outbox_waiting w WHERE w.event_id = e.id) AND NOT EXISTS (SELECT 1 FROM SCHEMA.outbox_dead x WHERE x.event_id = e.id)
  AND NOT EXISTS (SELECT 1 FROM SCHEMA.outbox_discarded c WHERE c.event_id = e.id) AS sent
  FROM SCHEMA.outbox_event e*/

-- name: mark
-- A table with an index, not a view: it is joined with every event.
CREATE TEMP TABLE mark AS /*union:SELECT consumer, key_digest, marked_at, EXISTS (SELECT 1 FROM SCHEMA.inbox_dead d WHERE d.consumer = m.consumer AND d.key_digest = m.key_digest) AS dead FROM SCHEMA.inbox_mark m*/

-- name: mark index
CREATE UNIQUE INDEX temp.mark_key ON mark (consumer, key_digest)

-- name: cause
CREATE TEMP TABLE cause (name TEXT PRIMARY KEY) WITHOUT ROWID

-- name: fill cause
INSERT OR IGNORE INTO cause SELECT name FROM (/*union:
  SELECT event_key AS name FROM SCHEMA.outbox_event UNION SELECT call_key FROM SCHEMA.outside_call UNION SELECT request_key FROM SCHEMA.idempotency_record
  UNION SELECT cause_key FROM SCHEMA.machine_transition WHERE cause_key <> ''*/)

-- name: subscription
CREATE TEMP TABLE subscription (consumer TEXT, type TEXT, PRIMARY KEY (consumer, type)) WITHOUT ROWID
