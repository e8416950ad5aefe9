-- name: InsertOrder :once
-- The primary key arbitrates between OrderPayable and an OrderClosing that overtook it.
INSERT INTO payment_order (order_no, user_id, currency, payable, state, version, expires_at, intents, paid_amount, paid_channel,
  paid_transaction, refund_reserved, refunded, opened_at, updated_at)
VALUES (?, ?, ?, ?, ?, 1, ?, 0, 0, '', '', 0, 0, ?, ?)

-- name: FindOrder
SELECT order_no, user_id, currency, payable, state, version, expires_at, intents, paid_amount, paid_channel, paid_transaction,
  refund_reserved, refunded, opened_at, updated_at
FROM payment_order WHERE order_no = ?

-- name: LockOrder
-- Takes the row before its intents are counted: of two closes that end at the same moment the second sees the first.
UPDATE payment_order SET updated_at = ? WHERE order_no = ?

-- name: CountIntent
-- Opens an intent only while the order is open, in one statement: OrderClosing either sees the intent or prevents it.
UPDATE payment_order SET intents = intents + 1, updated_at = ?
WHERE order_no = ? AND state = 'OPEN' AND expires_at > ? AND intents < ?

-- name: SetPaid
UPDATE payment_order SET paid_amount = ?, paid_channel = ?, paid_transaction = ?, updated_at = ? WHERE order_no = ?

-- name: ReserveRefund
-- One conditional statement: of two refunds that together exceed what was paid, one changes no row.
UPDATE payment_order SET refund_reserved = refund_reserved + ?, version = version + 1, updated_at = ?
WHERE order_no = ? AND state = 'PAID' AND currency = ? AND paid_amount - refund_reserved - refunded >= ?

-- name: FinishRefund
UPDATE payment_order SET refund_reserved = refund_reserved - ?, refunded = refunded + ?, version = version + 1, updated_at = ?
WHERE order_no = ?

-- name: ReleaseRefund
UPDATE payment_order SET refund_reserved = refund_reserved - ?, version = version + 1, updated_at = ? WHERE order_no = ?

-- name: InsertIntent
INSERT INTO payment_intent (trade_no, order_no, seq, channel, state, version, created_at, updated_at)
VALUES (?, ?, ?, ?, 'OPEN', 1, ?, ?)

-- name: FindIntent
SELECT trade_no, order_no, seq, channel, state, version, created_at, updated_at FROM payment_intent WHERE trade_no = ?

-- name: IntentsOfOrder
SELECT trade_no, order_no, seq, channel, state, version, created_at, updated_at FROM payment_intent WHERE order_no = ? ORDER BY seq

-- name: CountOpenIntents
SELECT COUNT(*) FROM payment_intent WHERE order_no = ? AND state = 'OPEN'

-- name: InsertReceipt :once
-- The first of concurrent twins inserts; the others wait for its commit, change no row and count themselves.
INSERT INTO payment_receipt (receipt_digest, channel, transaction_id, kind, trade_no, order_no, user_id, merchant, amount, currency, class, state,
  source, notice_id, body, deliveries, conflicts, refund_attempt, channel_refund_id, reason, received_at, updated_at)
VALUES (?, ?, ?, ?, ?, '', '', ?, ?, ?, 'IGNORED', 'RECORDED', ?, ?, ?, ?, 0, 0, '', '', ?, ?)

-- name: RepeatReceipt
UPDATE payment_receipt SET deliveries = deliveries + 1, updated_at = ?,
  conflicts = conflicts + CASE WHEN trade_no = ? AND merchant = ? AND amount = ? AND currency = ? THEN 0 ELSE 1 END
WHERE receipt_digest = ?

-- name: FindReceipt
SELECT channel, transaction_id, kind, trade_no, order_no, user_id, merchant, amount, currency, class, state, source, notice_id,
  deliveries, conflicts, refund_attempt, channel_refund_id, reason, received_at, updated_at
FROM payment_receipt WHERE receipt_digest = ?

-- name: ReceiptsOfOrder
SELECT channel, transaction_id, kind, trade_no, order_no, user_id, merchant, amount, currency, class, state, source, notice_id,
  deliveries, conflicts, refund_attempt, channel_refund_id, reason, received_at, updated_at
FROM payment_receipt WHERE order_no = ? ORDER BY received_at, transaction_id, kind

-- name: JudgeReceipt
-- Only from the state it was judged in: of two that judge, the second changes no row.
UPDATE payment_receipt SET class = ?, state = ?, order_no = ?, user_id = ?, reason = ?, updated_at = ?
WHERE receipt_digest = ? AND state = ?

-- name: NextReceiptRefund
UPDATE payment_receipt SET refund_attempt = ?, reason = ?, updated_at = ?
WHERE receipt_digest = ? AND state = 'REFUNDING'

-- name: EndReceiptRefund
UPDATE payment_receipt SET state = ?, channel_refund_id = ?, reason = ?, updated_at = ?
WHERE receipt_digest = ? AND state = 'REFUNDING'

-- name: RetryReceiptRefund
-- From REFUND_FAILED only: of two operators who ask, the second changes no row. Nor does one who looked before the attempts that
-- another one asked for had failed too: the call's key is the attempt's, and that one is used.
UPDATE payment_receipt SET state = 'REFUNDING', refund_attempt = ?, reason = ?, updated_at = ?
WHERE receipt_digest = ? AND state = 'REFUND_FAILED' AND refund_attempt = ?

-- name: InsertRefund :once
INSERT INTO payment_refund (refund_no, order_no, channel, transaction_id, amount, currency, state, version, attempt, channel_refund_id,
  reason, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, 'RESERVED', 1, 1, '', '', ?, ?)

-- name: FindRefund
SELECT refund_no, order_no, channel, transaction_id, amount, currency, state, version, attempt, channel_refund_id, reason, created_at,
  updated_at
FROM payment_refund WHERE refund_no = ?

-- name: RefundsOfOrder
SELECT refund_no, order_no, channel, transaction_id, amount, currency, state, version, attempt, channel_refund_id, reason, created_at,
  updated_at
FROM payment_refund WHERE order_no = ? ORDER BY created_at, refund_no

-- name: NoteRefund
UPDATE payment_refund SET attempt = ?, channel_refund_id = ?, reason = ?, updated_at = ? WHERE refund_no = ?

-- name: CasesOfClass
-- One class at a time, so that the index on (class, received_at) gives a page without looking at the many receipts that are
-- no case.
SELECT class AS kind, channel, transaction_id, '' AS refund_no, trade_no, order_no, amount, currency, state, reason, deliveries, conflicts,
  received_at AS at
FROM payment_receipt WHERE class = ? AND received_at < ? ORDER BY received_at DESC LIMIT ?

-- name: ConflictCases
-- Of the classes that are cases anyway, no second time. NOT IN, so that the index on conflicts is taken and not the one on class,
-- in which most receipts are APPLY.
SELECT 'CONFLICTING_NOTICE' AS kind, channel, transaction_id, '' AS refund_no, trade_no, order_no, amount, currency, state, reason, deliveries,
  conflicts, received_at AS at
FROM payment_receipt
WHERE conflicts > 0 AND class NOT IN ('LATE', 'SECOND', 'WRONG_AMOUNT', 'UNKNOWN_ORDER', 'WRONG_MERCHANT') AND received_at < ?
ORDER BY received_at DESC LIMIT ?

-- name: RefundCases
SELECT 'REFUND_FAILED' AS kind, channel, transaction_id, refund_no, '' AS trade_no, order_no, amount, currency, state, reason,
  0 AS deliveries, 0 AS conflicts, updated_at AS at
FROM payment_refund WHERE state = 'FAILED' AND updated_at < ? ORDER BY updated_at DESC LIMIT ?
