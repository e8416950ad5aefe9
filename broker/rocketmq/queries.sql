-- name: Decide :once
-- The row's unique key is the lock between the local transaction and the answer to a check-back: the second of two waits for
-- the end of the first one's transaction, and then inserts nothing.
INSERT INTO rocketmq_decision (transaction_id, decision, decided_at) VALUES (?, ?, ?)

-- name: Decision
-- After Decide, in the same transaction: at READ COMMITTED it sees the row that Decide met.
SELECT decision FROM rocketmq_decision WHERE transaction_id = ?

-- name: Delivered
-- The broker has confirmed the message, so the outbox has nothing to send for it. An event that has fallen due meanwhile is no
-- longer among the delayed: it is sent a second time, which changes nothing.
DELETE FROM outbox_delayed WHERE event_id IN (SELECT id FROM outbox_event WHERE key_digest = ?)

-- name: OldDecisions
SELECT transaction_id FROM rocketmq_decision WHERE decided_at < ? ORDER BY decided_at LIMIT ?

-- name: Forget
DELETE FROM rocketmq_decision WHERE transaction_id = ?
