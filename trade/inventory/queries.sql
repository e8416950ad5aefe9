-- The statements of the inventory. All run inside the transaction of the event or request that caused them.

-- name: OpenStock :once
-- Makes the SKU known; a receipt that follows in the same transaction gives it its pieces.
INSERT INTO stock (sku, on_hand, reserved, sold, updated_at) VALUES (?, 0, 0, 0, ?)

-- name: Receive
-- The bound keeps on_hand + sold far below where 64 bits end.
UPDATE stock SET on_hand = on_hand + ?, updated_at = ? WHERE sku = ? AND on_hand + sold <= ?

-- name: Reserve
-- Check and reservation are one statement: whoever comes second sees what the first one left. The row stays locked until commit
-- on PostgreSQL and MySQL, therefore callers come in SKU order.
UPDATE stock SET reserved = reserved + ?, updated_at = ? WHERE sku = ? AND on_hand - reserved >= ?

-- name: Release
UPDATE stock SET reserved = reserved - ?, updated_at = ? WHERE sku = ? AND reserved >= ?

-- name: Deduct
-- No column on a right side is one that an earlier assignment changed, which MySQL would see.
UPDATE stock SET on_hand = on_hand - ?, reserved = reserved - ?, sold = sold + ?, updated_at = ?
WHERE sku = ? AND reserved >= ? AND on_hand >= ?

-- name: Return
UPDATE stock SET on_hand = on_hand + ?, sold = sold - ?, updated_at = ? WHERE sku = ? AND sold >= ?

-- name: AddFlow :once
-- The key is the business identity of the change; it is inserted before the change so that a second one finds it.
INSERT INTO stock_flow (flow_key, sku, kind, quantity, order_no, cause, at) VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: FindFlow
SELECT flow_key, sku, kind, quantity, order_no, cause, at FROM stock_flow WHERE flow_key = ?

-- name: FindOrder
SELECT order_no, state, version FROM stock_order WHERE order_no = ?

-- name: AddOrder :once
INSERT INTO stock_order (order_no, user_id, state, version, reason, created_at, updated_at) VALUES (?, ?, ?, 1, ?, ?, ?)

-- name: BumpOrder
-- A return leaves the state and is a change all the same: its event needs the next version.
UPDATE stock_order SET version = version + 1, updated_at = ? WHERE order_no = ? AND version = ?

-- name: AddHold :once
INSERT INTO stock_hold (order_no, sku, quantity, returned, state, created_at, updated_at) VALUES (?, ?, ?, 0, 'HELD', ?, ?)

-- name: Holds
-- In SKU order, the order in which their stock rows are locked.
SELECT sku, quantity, returned, state FROM stock_hold WHERE order_no = ? ORDER BY sku

-- name: SettleHold
-- From HELD only, and once: released or deducted.
UPDATE stock_hold SET state = ?, updated_at = ? WHERE order_no = ? AND sku = ? AND state = 'HELD'

-- name: ReturnHold
-- Never more back than was deducted, whatever the sum of the refunds says.
UPDATE stock_hold SET returned = returned + ?, updated_at = ?
WHERE order_no = ? AND sku = ? AND state = 'DEDUCTED' AND returned + ? <= quantity

-- name: FindStock
SELECT sku, on_hand, reserved, sold, updated_at FROM stock WHERE sku = ?

-- name: ListStock
SELECT sku, on_hand, reserved, sold, updated_at FROM stock WHERE sku > ? AND on_hand - reserved <= ? ORDER BY sku LIMIT ?

-- name: FlowOf
SELECT flow_key, sku, kind, quantity, order_no, cause, at FROM stock_flow
WHERE sku = ? AND (at > ? OR (at = ? AND flow_key > ?)) ORDER BY at, flow_key LIMIT ?

