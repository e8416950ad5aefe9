-- name: InsertShipment :once
-- The primary key is what makes it one shipment per order, and arbitrates between OrderPaid and a refund that overtook it.
INSERT INTO shipment (order_no, user_id, state, version, pieces, booking_key, tracking_no, reason, created_at, updated_at)
VALUES (?, ?, ?, 1, ?, ?, '', ?, ?, ?)

-- name: FindShipment
SELECT order_no, user_id, state, version, pieces, booking_key, tracking_no, reason, created_at, updated_at FROM shipment WHERE order_no = ?

-- name: NoteShipment
UPDATE shipment SET tracking_no = ?, reason = ?, updated_at = ? WHERE order_no = ?

-- name: ShipmentsInState
SELECT order_no, user_id, state, version, pieces, booking_key, tracking_no, reason, created_at, updated_at FROM shipment
WHERE state = ? AND order_no > ? ORDER BY order_no LIMIT ?
