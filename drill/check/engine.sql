-- Equations about effects, events and calls. See money.sql for how they are written.

-- name: every effect has its row and every row its effect.checked
SELECT COUNT(*) FROM effect

-- name: every effect has its row and every row its effect.broken
-- The effect is the receipt of a business row, written in the same transaction: same key, same order, same cause.
SELECT effect_key, kind || ' of ' || CASE order_no WHEN '' THEN 'no order' ELSE 'order ' || order_no END || ' because of ' || cause || ': '
  || SUM(n) || ' effects, ' || SUM(m) || ' rows in ' || service FROM (
  SELECT service, effect_key, kind, order_no, CASE WHEN service IN ('inventory', 'points', 'ledger') THEN cause ELSE '' END AS cause, 1 AS n, 0 AS m FROM effect
  UNION ALL SELECT 'inventory', flow_key, 'stock.' || LOWER(kind), order_no, cause, 0, 1 FROM inventory.stock_flow
  UNION ALL SELECT 'points', entry_key, 'points.' || LOWER(kind), order_no, cause, 0, 1 FROM points.points_entry
  UNION ALL SELECT 'ledger', journal_key, 'ledger.' || LOWER(kind), order_no, cause, 0, 1 FROM ledger.journal
  UNION ALL SELECT 'risk', 'RISK:' || order_no, 'risk.decide', order_no, '', 0, 1 FROM risk.risk_decision
  UNION ALL SELECT 'notification', message_key, 'notification.send', order_no, '', 0, 1 FROM notification.notification
  UNION ALL SELECT 'shipping', booking_key, 'shipping.ship', order_no, '', 0, 1 FROM shipping.shipment WHERE pieces > 0
  UNION ALL SELECT 'shipping', 'CANCEL:' || booking_key, 'shipping.cancel', order_no, '', 0, 1 FROM shipping.shipment WHERE pieces > 0 AND state = 'CANCELED'
  UNION ALL SELECT 'coupon', 'COUPON_LOCK:' || biz_type || ':' || biz_id || ':' || user_id, 'coupon.lock', biz_id, '', 0, 1 FROM coupon.coupon_use WHERE amount > 0
  UNION ALL SELECT 'coupon', 'COUPON_REDEEM:' || biz_type || ':' || biz_id || ':' || user_id, 'coupon.redeem', biz_id, '', 0, 1 FROM coupon.coupon_use WHERE state IN ('REDEEMED', 'RETURNED')
  UNION ALL SELECT 'coupon', 'COUPON_RELEASE:' || biz_type || ':' || biz_id || ':' || user_id, 'coupon.release', biz_id, '', 0, 1 FROM coupon.coupon_use WHERE state = 'RELEASED' AND amount > 0
  UNION ALL SELECT 'coupon', 'COUPON_RETURN:' || biz_type || ':' || biz_id || ':' || user_id, 'coupon.return', biz_id, '', 0, 1 FROM coupon.coupon_use WHERE state = 'RETURNED'
) GROUP BY service, effect_key, kind, order_no, cause HAVING SUM(n) <> SUM(m)

-- name: a compensation reverses one effect of its own order.checked
SELECT COUNT(*) FROM effect WHERE reverses <> ''

-- name: a compensation reverses one effect of its own order.broken
SELECT e.effect_key, e.kind || ' reverses ' || e.reverses || CASE WHEN r.effect_key IS NULL THEN ', which is not there' ELSE ', which is ' || r.kind || ' of order ' || r.order_no END
FROM effect e LEFT JOIN effect r ON r.service = e.service AND r.effect_key = e.reverses
WHERE e.reverses <> '' AND (r.effect_key IS NULL OR r.order_no <> e.order_no OR r.effect_key = e.effect_key OR r.at > e.at
  OR ((e.kind || ' ' || r.kind) NOT IN ('stock.release stock.reserve', 'coupon.release coupon.lock', 'coupon.return coupon.redeem', 'points.point_unlock points.point_lock', 'shipping.cancel shipping.ship')
      AND e.kind <> 'ledger.correction'))
UNION ALL
SELECT reverses, 'is reversed ' || COUNT(*) || ' times' FROM effect WHERE reverses <> '' GROUP BY service, reverses HAVING COUNT(*) > 1
UNION ALL
SELECT effect_key, 'is a ' || kind || ' that reverses nothing' FROM effect
WHERE reverses = '' AND kind IN ('stock.release', 'coupon.release', 'coupon.return', 'shipping.cancel', 'ledger.correction')

-- name: every effect has a cause.checked
SELECT COUNT(*) FROM effect

-- name: every effect has a cause.broken
-- A cause is an event that some service wrote, a call that was made, or a request that was recorded.
SELECT e.effect_key, CASE e.cause WHEN '' THEN 'has no cause' ELSE 'says it was caused by ' || e.cause || ', which is not there' END
FROM effect e LEFT JOIN cause c ON c.name = e.cause
WHERE e.at >= :horizon AND c.name IS NULL

-- name: every change was told once.checked
SELECT COUNT(*) FROM event

-- name: every change was told once.broken
-- What a state says must have been said, once. An event that persons discarded wherever it came may be one that means nothing; one that
-- somebody applied was told.
SELECT type || ':' || id, 'is due ' || SUM(due) || ' times, told ' || SUM(told) || ' times' FROM (
  SELECT 'OrderCreated' AS type, order_no AS id, created_at AS at, 1 AS due, 0 AS told, 0 AS dropped FROM "order".orders
  UNION ALL SELECT 'OrderTimeout', order_no, created_at, 1, 0, 0 FROM "order".orders
  UNION ALL SELECT 'OrderPayable', order_no, payable_at, 1, 0, 0 FROM "order".orders WHERE payable > 0
  UNION ALL SELECT CASE to_state WHEN 'CLOSING' THEN 'OrderClosing' WHEN 'CANCELED' THEN 'OrderCanceled' WHEN 'PAID' THEN 'OrderPaid' WHEN 'SHIPPED' THEN 'OrderShipped' ELSE 'OrderCompleted' END, entity_id, at, 1, 0, 0
    FROM change WHERE machine = 'order' AND to_state IN ('CLOSING', 'CANCELED', 'PAID', 'SHIPPED', 'COMPLETED')
  UNION ALL SELECT 'RefundApproved', order_no, created_at, 1, 0, 0 FROM "order".refund WHERE cash > 0
  UNION ALL SELECT 'OrderRefunded', order_no, created_at, 1, 0, 0 FROM "order".refund WHERE status = 'REFUNDED'
  UNION ALL SELECT 'StockReturned', order_no, created_at, 1, 0, 0 FROM "order".refund WHERE status = 'REFUNDED'
  UNION ALL SELECT 'PointsReversed', order_no, at, 1, 0, 0 FROM points.points_entry WHERE kind = 'POINT_REVERSAL'
  UNION ALL SELECT CASE to_state WHEN 'HELD' THEN 'StockHeld' WHEN 'REJECTED' THEN 'StockRejected' WHEN 'DEDUCTED' THEN 'StockDeducted' ELSE 'StockReleased' END, entity_id, at, 1, 0, 0
    FROM change WHERE machine = 'stock' AND NOT (from_state = '' AND to_state = 'RELEASED')
  UNION ALL SELECT CASE c.to_state WHEN 'LOCKED' THEN 'CouponLocked' WHEN 'REJECTED' THEN 'CouponRejected' WHEN 'REDEEMED' THEN 'CouponRedeemed' ELSE 'CouponReturned' END, u.biz_id, c.at, 1, 0, 0
    FROM change c JOIN coupon.coupon_use u ON u.use_key = c.entity_id WHERE c.machine = 'coupon' AND NOT (c.from_state = '' AND c.to_state = 'RELEASED')
  UNION ALL SELECT CASE to_state WHEN 'LOCKED' THEN 'PointsLocked' WHEN 'REJECTED' THEN 'PointsRejected' ELSE 'PointsGranted' END, entity_id, at, 1, 0, 0
    FROM change WHERE machine = 'points' AND to_state <> 'RELEASED'
  UNION ALL SELECT CASE approved WHEN 1 THEN 'RiskApproved' ELSE 'RiskRejected' END, order_no, decided_at, 1, 0, 0 FROM risk.risk_decision
  UNION ALL SELECT CASE to_state WHEN 'PAID' THEN 'PaymentSucceeded' ELSE 'PaymentClosed' END, entity_id, at, 1, 0, 0 FROM change WHERE machine = 'payment' AND to_state IN ('PAID', 'CLOSED')
  UNION ALL SELECT CASE state WHEN 'REFUNDED' THEN 'PaymentRefunded' ELSE 'PaymentRefundFailed' END, order_no, created_at, 1, 0, 0 FROM payment.payment_refund WHERE state IN ('REFUNDED', 'FAILED')
  UNION ALL SELECT 'ReceiptRecorded', CASE order_no WHEN '' THEN trade_no ELSE order_no END, received_at, 1, 0, 0 FROM payment.payment_receipt WHERE kind = 'payment.succeeded' AND class <> 'WRONG_MERCHANT' AND state <> 'GRACE'
  UNION ALL SELECT 'ReceiptRefunded', CASE order_no WHEN '' THEN trade_no ELSE order_no END, received_at, 1, 0, 0 FROM payment.payment_receipt WHERE state = 'REFUNDED'
  UNION ALL SELECT CASE to_state WHEN 'DISPATCHED' THEN 'ShipmentDispatched' WHEN 'DELIVERED' THEN 'ShipmentDelivered' ELSE 'ShipmentCanceled' END, entity_id, at, 1, 0, 0
    FROM change WHERE machine = 'shipment' AND from_state <> '' AND to_state IN ('DISPATCHED', 'DELIVERED', 'CANCELED')
  UNION ALL SELECT type, aggregate_id, created_at, 0, 1, key_digest IN (/*union:SELECT key_digest FROM SCHEMA.inbox_dead WHERE state = 'DISCARDED'*/)
    AND NOT EXISTS (SELECT 1 FROM mark m WHERE m.key_digest = event.key_digest AND m.discarded = 0) FROM event
) GROUP BY type, id HAVING SUM(due AND at >= :horizon) > SUM(told) OR SUM(due) < SUM(told) - SUM(dropped)

-- name: every event was applied by every service that wants it.checked
SELECT COUNT(*) FROM event e JOIN subscription s ON s.type = e.type

-- name: every event was applied by every service that wants it.broken
SELECT e.event_key || ' → ' || s.consumer, 'was sent but not applied'
FROM event e JOIN subscription s ON s.type = e.type LEFT JOIN mark m ON m.key_digest = e.key_digest AND m.consumer = s.consumer
WHERE m.key_digest IS NULL AND e.sent = 1 AND e.created_at >= :horizon

-- name: nothing was applied that nobody wrote.checked
SELECT COUNT(*) FROM mark

-- name: nothing was applied that nobody wrote.broken
-- A discarded dead letter leaves its mark, also when its event could not be read.
SELECT m.consumer || ' ' || COALESCE(e.event_key, HEX(m.key_digest)), CASE WHEN e.key_digest IS NULL THEN 'was applied, but no outbox has such an event'
  WHEN m.service <> m.consumer THEN 'was applied in the database of ' || m.service ELSE 'was applied, but ' || m.consumer || ' does not want ' || e.type END
FROM mark m LEFT JOIN event e ON e.key_digest = m.key_digest LEFT JOIN subscription s ON s.consumer = m.consumer AND s.type = e.type
WHERE (e.key_digest IS NULL AND m.dead = 0 AND m.marked_at >= :horizon) OR m.service <> m.consumer OR (e.key_digest IS NOT NULL AND s.type IS NULL)

-- name: no event waits to be sent or applied.checked
SELECT COUNT(*) FROM event

-- name: no event waits to be sent or applied.broken
SELECT where_ || ' ' || COALESCE(key_, 'an event that is not there'), 'is not done: ' || why FROM (/*union:
  SELECT 'SCHEMA' AS where_, e.event_key AS key_, 'pending in the outbox' AS why FROM SCHEMA.outbox_pending p LEFT JOIN SCHEMA.outbox_event e ON e.id = p.event_id
  UNION ALL SELECT 'SCHEMA', e.event_key, 'overdue in the outbox' FROM SCHEMA.outbox_delayed d LEFT JOIN SCHEMA.outbox_event e ON e.id = d.event_id WHERE d.deliver_at < :now OR e.id IS NULL OR d.deliver_at <> e.deliver_at
  UNION ALL SELECT 'SCHEMA', e.event_key, 'behind a blocked aggregate' FROM SCHEMA.outbox_waiting w LEFT JOIN SCHEMA.outbox_event e ON e.id = w.event_id
  UNION ALL SELECT 'SCHEMA', aggregate_type || '/' || aggregate_id, 'blocked in the outbox: ' || last_error FROM SCHEMA.outbox_blocked
  UNION ALL SELECT 'SCHEMA', aggregate_type || '/' || aggregate_id, 'blocked in the inbox' FROM SCHEMA.inbox_blocked
  UNION ALL SELECT 'SCHEMA', event_key, 'waits in the inbox: ' || last_error FROM SCHEMA.inbox_waiting*/)

-- name: no dead letter is open.checked
SELECT COUNT(*) FROM (/*union:SELECT id FROM SCHEMA.inbox_dead UNION ALL SELECT event_id FROM SCHEMA.outbox_dead*/)

-- name: no dead letter is open.broken
SELECT where_ || ' ' || COALESCE(key_, 'an event that is not there'), why FROM (/*union:
  SELECT 'SCHEMA' AS where_, e.event_key AS key_, d.error AS why FROM SCHEMA.outbox_dead d LEFT JOIN SCHEMA.outbox_event e ON e.id = d.event_id
  UNION ALL SELECT 'SCHEMA', event_key, error FROM SCHEMA.inbox_dead WHERE state = 'OPEN'*/)

-- name: no call to the outside is left or was given up.checked
SELECT COUNT(*) FROM (/*union:SELECT id FROM SCHEMA.outside_call*/)

-- name: no call to the outside is left or was given up.broken
-- A call whose time has not come, such as the next question where a parcel is, is nothing left over; one that is tried again
-- is. A refund that the channel refused is asked for again under another number; how that ended the refunds' equations tell.
SELECT where_ || ' ' || kind || ' ' || call_key, CASE state WHEN 3 THEN 'was given up: ' ELSE 'is not done: ' END || error FROM (/*union:
  SELECT 'SCHEMA' AS where_, kind, call_key, state, error FROM SCHEMA.outside_call WHERE state = 1 OR (state = 0 AND (next_at <= :now OR attempts > 0))
  UNION ALL SELECT 'SCHEMA', kind, call_key, state, error FROM SCHEMA.outside_call WHERE state = 3 AND kind <> 'channel.refund'*/)
