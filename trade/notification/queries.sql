-- name: InsertNotification :once
-- The primary key is what makes it one message per occasion.
INSERT INTO notification (message_key, order_no, user_id, type, body, state, provider_id, reason, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, 'PENDING', '', '', ?, ?)

-- name: EndNotification
UPDATE notification SET state = ?, provider_id = ?, reason = ?, updated_at = ? WHERE message_key = ? AND state = 'PENDING'

-- name: NotificationsOfOrder
SELECT message_key, order_no, user_id, type, body, state, provider_id, reason, created_at, updated_at
FROM notification WHERE order_no = ? ORDER BY created_at, message_key
