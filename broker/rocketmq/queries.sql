-- name: Decide :once
-- The row's unique key is the lock between the local transaction and the answer to a check-back: the second of two waits for
-- the end of the first one's transaction, and then inserts nothing.
INSERT INTO rocketmq_decision (transaction_id, decision, decided_at) VALUES (?, ?, ?)

-- name: Decision
-- After Decide, in the same transaction: at READ COMMITTED it sees the row that Decide met.
SELECT decision FROM rocketmq_decision WHERE transaction_id = ?

-- name: EventID
SELECT id FROM outbox_event WHERE key_digest = ?

-- name: Delivered
-- The broker has confirmed the message, so the outbox has nothing to send for it. An event that has fallen due meanwhile is no
-- longer among the delayed: it is sent a second time, which changes nothing. The row is named by its primary key: with the event
-- in a subquery MariaDB reads all of the delayed, and waits for each local transaction that has just written one.
DELETE FROM outbox_delayed WHERE event_id = ?

-- name: OldDecisions
SELECT transaction_id FROM rocketmq_decision WHERE decided_at < ? ORDER BY decided_at LIMIT ?

-- name: Forget
DELETE FROM rocketmq_decision WHERE transaction_id = ?
