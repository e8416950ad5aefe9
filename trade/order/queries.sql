-- name: InsertPrice :once
INSERT INTO product_price (sku, offer, currency, unit_price, updated_at) VALUES (?, ?, ?, ?, ?)

-- name: UpdatePrice
UPDATE product_price SET currency = ?, unit_price = ?, updated_at = ? WHERE sku = ? AND offer = ?

-- name: FindPrice
SELECT sku, offer, currency, unit_price, updated_at FROM product_price WHERE sku = ? AND offer = ?

-- name: PricesOfProduct
SELECT sku, offer, currency, unit_price, updated_at FROM product_price WHERE sku = ? ORDER BY offer

-- name: ClaimToken :once
-- The primary key decides between two requests with one token: the second waits for the first one's commit, changes no row
-- and then reads the claim.
INSERT INTO client_token_claim (token_id, user_id, order_no, fingerprint, claimed_at) VALUES (?, ?, ?, ?, ?)

-- name: FindClaim
SELECT token_id, user_id, order_no, fingerprint, claimed_at FROM client_token_claim WHERE token_id = ?

-- name: OldClaims
SELECT token_id FROM client_token_claim WHERE claimed_at < ? ORDER BY claimed_at LIMIT ?

-- name: RemoveClaim
-- One by one, by primary key: a range would lock what the next claim is inserted into.
DELETE FROM client_token_claim WHERE token_id = ?

-- name: InsertOrder
INSERT INTO orders (order_no, user_id, status, version, currency, goods_total, coupon_code, coupon_value, points_to_spend,
  points_locked, stock_held, coupon_held, points_held, risk_approved, coupon_total, points_spent, payable, payable_at, reason,
  channel, transaction_id, client_ref, due_at, expires_at, refund_count, created_at, updated_at)
VALUES (?, ?, 'CREATED', 1, ?, ?, ?, 0, ?, 0, 0, ?, ?, 0, 0, 0, 0, 0, '', '', '', ?, ?, ?, 0, ?, ?)

-- name: FindOrder
SELECT order_no, user_id, status, version, currency, goods_total, coupon_code, coupon_value, points_to_spend, points_locked,
  stock_held, coupon_held, points_held, risk_approved, coupon_total, points_spent, payable, payable_at, reason, channel,
  transaction_id, client_ref, expires_at, refund_count, created_at, updated_at
FROM orders WHERE order_no = ?

-- name: StateOfOrder
SELECT user_id, status, payable_at FROM orders WHERE order_no = ?

-- name: ReadyToPay
-- All that was asked for is held, and nobody has made the order payable or closed it.
SELECT CASE WHEN status = 'CREATED' AND payable_at = 0 AND stock_held = 1 AND coupon_held = 1 AND points_held = 1 AND risk_approved = 1
       THEN 1 ELSE 0 END
FROM orders WHERE order_no = ?

-- name: OrdersOfUser
-- Order numbers grow with time, so the index on (user_id, order_no) serves newest first without a sort.
SELECT order_no, user_id, status, version, currency, goods_total, coupon_code, coupon_value, points_to_spend, points_locked,
  stock_held, coupon_held, points_held, risk_approved, coupon_total, points_spent, payable, payable_at, reason, channel,
  transaction_id, client_ref, expires_at, refund_count, created_at, updated_at
FROM orders WHERE user_id = ? AND order_no < ? ORDER BY order_no DESC LIMIT ?

-- name: LinesOfOrder
SELECT line_no, sku, quantity, unit_price, amount, coupon_share, points_share, payable, refunded_quantity, refunded_coupon,
  refunded_points, refunded_cash
FROM order_line WHERE order_no = ? ORDER BY line_no

-- name: SetStockHeld
-- The UPDATEs of answers also take the order's row: two answers at one moment take turns, and the second sees the first.
UPDATE orders SET stock_held = 1, updated_at = ? WHERE order_no = ? AND stock_held = 0

-- name: SetCouponHeld
UPDATE orders SET coupon_held = 1, coupon_value = ?, updated_at = ? WHERE order_no = ? AND coupon_held = 0

-- name: SetPointsHeld
UPDATE orders SET points_held = 1, points_locked = ?, updated_at = ? WHERE order_no = ? AND points_held = 0

-- name: SetRiskApproved
UPDATE orders SET risk_approved = 1, updated_at = ? WHERE order_no = ? AND risk_approved = 0

-- name: SetPayable
-- Once, and only while the order is open: a cancel that was first leaves no row to change.
UPDATE orders SET coupon_total = ?, points_spent = ?, payable = ?, payable_at = ?, updated_at = ?, version = version + 1
WHERE order_no = ? AND status = 'CREATED' AND payable_at = 0

-- name: SetWholeLines
-- Without coupon and points nothing is shared out: all lines in one statement.
UPDATE order_line SET payable = amount WHERE order_no = ?

-- name: SetLineShares
UPDATE order_line SET coupon_share = ?, points_share = ?, payable = ? WHERE order_no = ? AND line_no = ?

-- name: SetClosing
UPDATE orders SET reason = ?, due_at = NULL, updated_at = ? WHERE order_no = ?

-- name: SetPaid
UPDATE orders SET channel = ?, transaction_id = ?, reason = '', due_at = NULL, updated_at = ? WHERE order_no = ?

-- name: Touch
UPDATE orders SET updated_at = ? WHERE order_no = ?

-- name: DueOrders
-- The sweep: what the delayed event missed. due_at is NULL for everything that is not open.
SELECT order_no FROM orders WHERE due_at <= ? ORDER BY due_at LIMIT ?

-- name: LockForRefund
-- Takes the order's row, so that refunds of one order take turns and each sees what is left after the one before; the
-- count is the refund's number, the version that of its event.
UPDATE orders SET refund_count = refund_count + 1, version = version + 1, updated_at = ? WHERE order_no = ?

-- name: NextVersion
UPDATE orders SET version = version + 1, updated_at = ? WHERE order_no = ?

-- name: ReserveLine
-- The backstop behind LockForRefund: never more pieces than there are, never from figures that somebody else changed.
UPDATE order_line SET refunded_quantity = refunded_quantity + ?, refunded_coupon = refunded_coupon + ?,
  refunded_points = refunded_points + ?, refunded_cash = refunded_cash + ?
WHERE order_no = ? AND line_no = ? AND refunded_quantity = ? AND refunded_quantity + ? <= quantity

-- name: ReleaseLine
UPDATE order_line SET refunded_quantity = refunded_quantity - ?, refunded_coupon = refunded_coupon - ?,
  refunded_points = refunded_points - ?, refunded_cash = refunded_cash - ?
WHERE order_no = ? AND line_no = ?

-- name: InsertRefund
INSERT INTO refund (refund_no, order_no, refund_index, status, version, amount, coupon_total, points_back, cash, reason, failure,
  channel_id, actor, created_at, updated_at)
VALUES (?, ?, ?, 'REQUESTED', 1, ?, ?, ?, ?, ?, '', '', ?, ?, ?)

-- name: FindRefund
SELECT refund_no, order_no, refund_index, status, version, amount, coupon_total, points_back, cash, reason, failure, channel_id,
  actor, created_at, updated_at
FROM refund WHERE refund_no = ?

-- name: RefundsOfOrder
SELECT refund_no, order_no, refund_index, status, version, amount, coupon_total, points_back, cash, reason, failure, channel_id,
  actor, created_at, updated_at
FROM refund WHERE order_no = ? ORDER BY refund_index

-- name: LinesOfRefund
SELECT line_no, sku, quantity, amount, coupon_share, points_share, cash FROM refund_line WHERE refund_no = ? ORDER BY line_no

-- name: LinesOfRefunds
SELECT l.refund_no, l.line_no, l.sku, l.quantity, l.amount, l.coupon_share, l.points_share, l.cash
FROM refund_line l JOIN refund r ON r.refund_no = l.refund_no WHERE r.order_no = ? ORDER BY r.refund_index, l.line_no

-- name: SetRefunded
UPDATE refund SET channel_id = ?, updated_at = ? WHERE refund_no = ?

-- name: SetRefundFailed
UPDATE refund SET failure = ?, updated_at = ? WHERE refund_no = ?

-- name: SumRefunded
-- What is back for sure; what is only on its way does not count.
SELECT COALESCE(SUM(cash), 0) AS cash, COALESCE(SUM(amount), 0) AS amount FROM refund WHERE order_no = ? AND status = 'REFUNDED'

-- name: PiecesRefunded
SELECT COALESCE(SUM(l.quantity), 0) FROM refund_line l JOIN refund r ON r.refund_no = l.refund_no
WHERE r.order_no = ? AND r.status = 'REFUNDED'

-- name: PiecesOrdered
SELECT COALESCE(SUM(quantity), 0) FROM order_line WHERE order_no = ?
