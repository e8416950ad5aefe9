-- What a report tells beside the equations.

-- name: orders
SELECT status, COUNT(*) FROM "order".orders GROUP BY status

-- name: effects
SELECT kind, COUNT(*) FROM (/*union:SELECT kind FROM SCHEMA.effect*/) GROUP BY kind

-- name: receipts
SELECT 'receipt ' || class, COUNT(*) FROM payment.payment_receipt GROUP BY class

-- name: repeated notices
-- Deliveries of a notice beyond the first: each was verified, counted and changed nothing.
SELECT COALESCE(SUM(deliveries - 1), 0) FROM payment.payment_receipt

-- name: repeated calls
-- Requests to the outside that came again with the same key.
SELECT (SELECT COALESCE(SUM(repeats), 0) FROM world.channel_refund) + (SELECT COALESCE(SUM(repeats), 0) FROM world.carrier_booking)
  + (SELECT COALESCE(SUM(repeats), 0) FROM world.messenger_message)

-- name: deliveries
-- Each event at each consumer: when it was due and when it was applied.
SELECT m.consumer, e.event_key, MAX(e.created_at, e.deliver_at), m.marked_at FROM event e JOIN mark m ON m.key_digest = e.key_digest

-- name: refunded receipts
-- Money that pays no order: when it came and when it was back. A repeated notice changes updated_at, so the event tells.
SELECT r.received_at, e.created_at FROM payment.payment_receipt r
JOIN payment.outbox_event e ON e.event_key = 'ReceiptRefunded:' || r.channel || ':' || r.transaction_id WHERE r.state = 'REFUNDED'
