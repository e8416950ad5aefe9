-- Temporary tables over all services, made once per run after the files are attached. Tables with indexes and not views:
-- they are joined with every event, and a join of two views reads one of them again for every row of the other.

-- name: event
-- sent = 1: no narrow row says that it is still to be done, and nobody discarded it.
CREATE TEMP TABLE event AS /*union:SELECT 'SCHEMA' AS service, id, event_key, key_digest, type, aggregate_id, created_at, deliver_at,
  NOT EXISTS (SELECT 1 FROM SCHEMA.outbox_pending p WHERE p.event_id = e.id) AND NOT EXISTS (SELECT 1 FROM SCHEMA.outbox_delayed d WHERE d.event_id = e.id)
  AND NOT EXISTS (SELECT 1 FROM SCHEMA.outbox_waiting w WHERE w.event_id = e.id) AND NOT EXISTS (SELECT 1 FROM SCHEMA.outbox_dead x WHERE x.event_id = e.id)
  AND NOT EXISTS (SELECT 1 FROM SCHEMA.outbox_discarded c WHERE c.event_id = e.id) AS sent
  FROM SCHEMA.outbox_event e*/

-- name: event index
CREATE INDEX temp.event_digest ON event (key_digest)

-- name: event type index
CREATE INDEX temp.event_type ON event (type, aggregate_id)

-- name: mark
-- Not unique on purpose: a mark in a foreign database is damage to be named, not an error of the check.
CREATE TEMP TABLE mark AS /*union:SELECT 'SCHEMA' AS service, consumer, key_digest, marked_at,
  EXISTS (SELECT 1 FROM SCHEMA.inbox_dead d WHERE d.consumer = m.consumer AND d.key_digest = m.key_digest) AS dead,
  EXISTS (SELECT 1 FROM SCHEMA.inbox_dead d WHERE d.consumer = m.consumer AND d.key_digest = m.key_digest AND d.state = 'DISCARDED') AS discarded FROM SCHEMA.inbox_mark m*/

-- name: mark index
CREATE INDEX temp.mark_key ON mark (key_digest, consumer)

-- name: effect
CREATE TEMP TABLE effect AS /*union:SELECT 'SCHEMA' AS service, effect_key, order_no, kind, reverses, cause, at FROM SCHEMA.effect*/

-- name: effect index
CREATE INDEX temp.effect_key ON effect (effect_key, service)

-- name: change
-- Every transition of every state machine; what persons did to dead events and letters stands among them and is none.
CREATE TEMP TABLE change AS /*union:SELECT 'SCHEMA' AS service, id, machine, entity_id, move, from_state, to_state, cause, cause_key, version, at FROM SCHEMA.machine_transition WHERE machine NOT LIKE 'ops.%'*/

-- name: change index
CREATE INDEX temp.change_entity ON change (machine, entity_id, id)

-- name: cause
CREATE TEMP TABLE cause (name TEXT PRIMARY KEY) WITHOUT ROWID

-- name: fill cause
-- A cause is an event that some service wrote, a call that was made, a request that was recorded or a payment that was
-- received. A refund that gives no money back is finished by the request that asked for it; an order
-- whose reminder was late is closed by the sweep, after its time.
INSERT OR IGNORE INTO cause SELECT name FROM (/*union:
  SELECT event_key AS name FROM SCHEMA.outbox_event UNION SELECT call_key FROM SCHEMA.outside_call
  UNION SELECT request_key FROM SCHEMA.idempotency_record UNION SELECT 'request:' || request_key FROM SCHEMA.idempotency_record*/)
  UNION SELECT channel || ':' || transaction_id FROM payment.payment_receipt
  UNION SELECT 'refund:' || refund_no FROM "order".refund WHERE cash = 0
  UNION SELECT 'sweep:' || order_no FROM "order".orders WHERE updated_at >= expires_at

-- name: paid
CREATE TEMP VIEW paid AS SELECT * FROM "order".orders WHERE status IN ('PAID', 'SHIPPED', 'COMPLETED', 'REFUNDING', 'REFUNDED')

-- name: legal
-- The moves that the state machines allow, written down once more.
CREATE TEMP TABLE legal (machine TEXT, from_state TEXT, to_state TEXT, PRIMARY KEY (machine, from_state, to_state)) WITHOUT ROWID

-- name: fill legal
INSERT INTO legal VALUES
  ('order', '', 'CREATED'), ('order', 'CREATED', 'CLOSING'), ('order', 'CLOSING', 'CANCELED'), ('order', 'CREATED', 'PAID'), ('order', 'CLOSING', 'PAID'),
  ('order', 'PAID', 'SHIPPED'), ('order', 'SHIPPED', 'COMPLETED'), ('order', 'PAID', 'REFUNDING'), ('order', 'SHIPPED', 'REFUNDING'),
  ('order', 'COMPLETED', 'REFUNDING'), ('order', 'REFUNDING', 'REFUNDED'),
  ('refund', '', 'REQUESTED'), ('refund', 'REQUESTED', 'REFUNDED'), ('refund', 'REQUESTED', 'FAILED'),
  ('payment', '', 'OPEN'), ('payment', '', 'CLOSED'), ('payment', 'OPEN', 'CLOSING'), ('payment', 'CLOSING', 'CLOSED'), ('payment', 'OPEN', 'PAID'), ('payment', 'CLOSING', 'PAID'),
  ('intent', '', 'OPEN'), ('intent', 'OPEN', 'CLOSED'), ('intent', 'OPEN', 'PAID'), ('intent', 'CLOSED', 'PAID'),
  ('payment_refund', '', 'RESERVED'), ('payment_refund', 'RESERVED', 'REFUNDED'), ('payment_refund', 'RESERVED', 'FAILED'),
  ('stock', '', 'HELD'), ('stock', '', 'REJECTED'), ('stock', '', 'RELEASED'), ('stock', 'HELD', 'RELEASED'), ('stock', 'HELD', 'DEDUCTED'),
  ('coupon', '', 'LOCKED'), ('coupon', '', 'REJECTED'), ('coupon', '', 'RELEASED'), ('coupon', 'LOCKED', 'REDEEMED'), ('coupon', 'LOCKED', 'RELEASED'), ('coupon', 'REDEEMED', 'RETURNED'),
  ('points', '', 'LOCKED'), ('points', '', 'REJECTED'), ('points', '', 'RELEASED'), ('points', '', 'PAID'), ('points', 'LOCKED', 'PAID'), ('points', 'LOCKED', 'RELEASED'),
  ('shipment', '', 'BOOKING'), ('shipment', '', 'CANCELED'), ('shipment', 'BOOKING', 'DISPATCHED'), ('shipment', 'CANCELING', 'DISPATCHED'), ('shipment', 'DISPATCHED', 'DELIVERED'),
  ('shipment', 'BOOKING', 'CANCELING'), ('shipment', 'CANCELING', 'CANCELED'), ('shipment', 'FAILED', 'CANCELED'), ('shipment', 'BOOKING', 'FAILED'), ('shipment', 'DISPATCHED', 'FAILED')

-- name: subscription
CREATE TEMP TABLE subscription (consumer TEXT, type TEXT, PRIMARY KEY (consumer, type)) WITHOUT ROWID
