-- name: FindTrade
SELECT t.trade_no, t.merchant, t.state, t.transaction_id, t.at, COALESCE(p.amount, 0) AS amount, COALESCE(p.currency, '') AS currency
FROM channel_trade t LEFT JOIN channel_payment p ON p.transaction_id = t.transaction_id WHERE t.trade_no = ?

-- name: InsertTrade :once
-- The primary key arbitrates between a payment and a close of the same moment: the first one stands.
INSERT INTO channel_trade (trade_no, merchant, state, transaction_id, at) VALUES (?, ?, ?, ?, ?)

-- name: ForceTradePaid
UPDATE channel_trade SET state = 'PAID', transaction_id = ? WHERE trade_no = ? AND state = 'CLOSED'

-- name: InsertPayment
INSERT INTO channel_payment (transaction_id, trade_no, merchant, amount, currency, refunded, at) VALUES (?, ?, ?, ?, ?, 0, ?)

-- name: FindPayment
SELECT transaction_id, trade_no, merchant, amount, currency, refunded, at FROM channel_payment WHERE transaction_id = ?

-- name: TakeRefund
-- One conditional statement: two refunds that together exceed the payment cannot both pass.
UPDATE channel_payment SET refunded = refunded + ?
WHERE transaction_id = ? AND merchant = ? AND currency = ? AND refunded + ? <= amount

-- name: FindRefund
SELECT refund_no, refund_id, transaction_id, amount, currency FROM channel_refund WHERE refund_no = ?

-- name: InsertRefund
INSERT INTO channel_refund (refund_no, refund_id, transaction_id, amount, currency, repeats, at) VALUES (?, ?, ?, ?, ?, 0, ?)

-- name: RepeatRefund
UPDATE channel_refund SET repeats = repeats + 1 WHERE refund_no = ?

-- name: Bill
SELECT 'PAYMENT' AS kind, p.merchant, p.trade_no, p.transaction_id, '' AS refund_no, '' AS refund_id, p.amount, p.currency, p.at
FROM channel_payment p WHERE p.merchant = ? AND p.at >= ? AND p.at < ?
UNION ALL
SELECT 'REFUND', p.merchant, p.trade_no, p.transaction_id, r.refund_no, r.refund_id, r.amount, r.currency, r.at
FROM channel_refund r JOIN channel_payment p ON p.transaction_id = r.transaction_id WHERE p.merchant = ? AND r.at >= ? AND r.at < ?
ORDER BY 9, 4, 5

-- name: InsertNotice
INSERT INTO channel_notice (notice_id, copy_no, trade_no, body, attempts, next_at, acked_at, answer) VALUES (?, ?, ?, ?, 0, ?, 0, '')

-- name: DueNotices
SELECT notice_id, copy_no, trade_no, body, attempts FROM channel_notice WHERE acked_at = 0 AND next_at <= ? ORDER BY next_at, notice_id LIMIT 64

-- name: NextNotice
SELECT COALESCE(MIN(next_at), 0) FROM channel_notice WHERE acked_at = 0

-- name: AckNotice
UPDATE channel_notice SET acked_at = ?, attempts = attempts + 1, answer = ? WHERE notice_id = ? AND copy_no = ?

-- name: RetryNotice
UPDATE channel_notice SET next_at = ?, attempts = attempts + 1, answer = ? WHERE notice_id = ? AND copy_no = ?

-- name: CountNotices
SELECT COUNT(*) AS total, COALESCE(SUM(attempts), 0) AS attempts, COALESCE(SUM(CASE WHEN acked_at = 0 THEN 1 ELSE 0 END), 0) AS pending
FROM channel_notice

-- name: FindBooking
SELECT booking_key, tracking_no, content, booked_at, canceled_at FROM carrier_booking WHERE booking_key = ?

-- name: InsertBooking :once
INSERT INTO carrier_booking (booking_key, tracking_no, content, booked_at, canceled_at, repeats) VALUES (?, ?, ?, ?, ?, 0)

-- name: RepeatBooking
UPDATE carrier_booking SET repeats = repeats + 1 WHERE booking_key = ?

-- name: CancelBooking
-- Only before the parcel moves.
UPDATE carrier_booking SET canceled_at = ? WHERE booking_key = ? AND canceled_at = 0 AND booked_at > ?

-- name: FindMessage
SELECT message_key, message_id, content, at FROM messenger_message WHERE message_key = ?

-- name: InsertMessage :once
INSERT INTO messenger_message (message_key, message_id, content, repeats, at) VALUES (?, ?, ?, 0, ?)

-- name: RepeatMessage
UPDATE messenger_message SET repeats = repeats + 1 WHERE message_key = ?

-- name: InsertFault :once
INSERT INTO fault_count (name, n) VALUES (?, 0)

-- name: CountFault
UPDATE fault_count SET n = n + ? WHERE name = ?

-- name: Faults
SELECT name, n FROM fault_count ORDER BY name

-- name: Totals
SELECT (SELECT COUNT(*) FROM channel_payment) AS payments, (SELECT COUNT(*) FROM channel_refund) AS refunds,
  (SELECT COUNT(*) FROM carrier_booking WHERE tracking_no <> '') AS bookings, (SELECT COUNT(*) FROM messenger_message) AS messages
