-- Equations about money: payments, the channel's bill, refunds, orders. Each equation is two statements: NAME.checked counts what
-- was looked at, NAME.broken returns (key, detail) of every row that breaks the law. Schemas are attached database files:
-- "order".orders is orders in order.db. Every statement reads whole tables: a check that samples proves nothing. A comparison
-- with NULL is neither true nor false and would pass as unbroken, so every outer join's columns are compared by IS or COALESCE.

-- name: paid orders have exactly one applied payment of the right amount.checked
SELECT COUNT(*) FROM paid

-- name: paid orders have exactly one applied payment of the right amount.broken
SELECT o.order_no, 'order is ' || o.status || ' over ' || o.payable || ' but has ' || COUNT(r.transaction_id) || ' applied payments over ' || COALESCE(SUM(r.amount), 0)
FROM paid o
LEFT JOIN payment.payment_receipt r ON r.order_no = o.order_no AND r.state = 'APPLIED'
GROUP BY o.order_no
HAVING (o.payable > 0 AND (COUNT(r.transaction_id) <> 1 OR SUM(r.amount) <> o.payable OR MAX(r.currency) <> o.currency
        OR MAX(r.transaction_id) <> o.transaction_id OR MAX(r.channel) <> o.channel))
    OR (o.payable = 0 AND (COUNT(r.transaction_id) <> 0 OR o.channel <> 'none' OR o.transaction_id <> 'ZERO:' || o.order_no))
UNION ALL
SELECT r.order_no, 'payment ' || r.transaction_id || ' of ' || r.amount || ' is applied to an order that is ' || COALESCE(o.status, 'not there')
FROM payment.payment_receipt r LEFT JOIN "order".orders o ON o.order_no = r.order_no
WHERE r.state = 'APPLIED' AND NOT EXISTS (SELECT 1 FROM paid p WHERE p.order_no = r.order_no)

-- name: unpaid and canceled orders keep no money.checked
SELECT COUNT(*) FROM "order".orders WHERE status IN ('CREATED','CLOSING','CANCELED')

-- name: unpaid and canceled orders keep no money.broken
SELECT o.order_no, 'order is ' || o.status || ' but a payment of ' || r.amount || ' is ' || r.state
FROM "order".orders o JOIN payment.payment_receipt r ON r.order_no = o.order_no
WHERE o.status IN ('CREATED','CLOSING','CANCELED') AND r.kind = 'payment.succeeded' AND r.state NOT IN ('REFUNDED','HELD')

-- name: an order keeps what it cost less what it gave back.checked
SELECT COUNT(*) FROM "order".orders

-- name: an order keeps what it cost less what it gave back.broken
-- The channel's own books against the order's. Somebody else's money is not ours to count.
SELECT o.order_no, 'the channel kept ' || COALESCE(m.kept, 0) || ', the order says ' || (CASE WHEN p.order_no IS NULL THEN 0 ELSE o.payable END - COALESCE(f.cash, 0))
FROM "order".orders o
LEFT JOIN paid p ON p.order_no = o.order_no
LEFT JOIN (SELECT i.order_no, SUM(c.amount - c.refunded) AS kept FROM payment.payment_intent i JOIN world.channel_payment c ON c.trade_no = i.trade_no
           WHERE (c.transaction_id, c.merchant) NOT IN (SELECT transaction_id, merchant FROM payment.payment_receipt WHERE class = 'WRONG_MERCHANT')
           GROUP BY i.order_no) m ON m.order_no = o.order_no
LEFT JOIN (SELECT order_no, SUM(cash) AS cash FROM "order".refund WHERE status = 'REFUNDED' GROUP BY order_no) f ON f.order_no = o.order_no
WHERE COALESCE(m.kept, 0) <> CASE WHEN p.order_no IS NULL THEN 0 ELSE o.payable END - COALESCE(f.cash, 0)

-- name: every receipt came to its end.checked
SELECT COUNT(*) FROM payment.payment_receipt

-- name: every receipt came to its end.broken
-- Money that pays no order went back; money of somebody else is held; what is no money moves nothing.
SELECT channel || ':' || transaction_id, class || ' (' || kind || ') over ' || amount || ' is ' || state
FROM payment.payment_receipt
WHERE (class || ' ' || state) NOT IN ('APPLY APPLIED', 'LATE REFUNDED', 'SECOND REFUNDED', 'WRONG_AMOUNT REFUNDED', 'UNKNOWN_ORDER REFUNDED', 'WRONG_MERCHANT HELD', 'IGNORED IGNORED')
   OR (class = 'IGNORED') <> (kind <> 'payment.succeeded')
   OR (state = 'REFUNDED') <> (channel_refund_id <> '')

-- name: every receipt is what its class says.checked
SELECT COUNT(*) FROM payment.payment_receipt WHERE kind = 'payment.succeeded'

-- name: every receipt is what its class says.broken
SELECT r.channel || ':' || r.transaction_id, 'is ' || r.class || ' over ' || r.amount || ' ' || r.currency || ' for trade ' || r.trade_no || '; payable '
  || COALESCE(p.payable, 0) || ' ' || COALESCE(p.currency, '') || ', paid by ' || COALESCE(p.paid_transaction, 'nothing')
FROM payment.payment_receipt r
LEFT JOIN payment.payment_intent i ON i.trade_no = r.trade_no
LEFT JOIN payment.payment_order p ON p.order_no = i.order_no
WHERE r.kind = 'payment.succeeded' AND CASE r.class
  WHEN 'UNKNOWN_ORDER' THEN i.trade_no IS NOT NULL OR r.order_no <> ''
  WHEN 'WRONG_MERCHANT' THEN r.merchant IN (SELECT merchant FROM payment.payment_receipt WHERE class = 'APPLY')
  WHEN 'WRONG_AMOUNT' THEN p.order_no IS NULL OR r.order_no <> p.order_no OR (r.amount = p.payable AND r.currency = p.currency)
  WHEN 'APPLY' THEN p.order_no IS NULL OR r.order_no <> p.order_no OR r.amount <> p.payable OR r.currency <> p.currency OR r.transaction_id <> p.paid_transaction
  WHEN 'SECOND' THEN p.order_no IS NULL OR r.order_no <> p.order_no OR p.state <> 'PAID' OR r.transaction_id = p.paid_transaction OR r.amount <> p.payable
  WHEN 'LATE' THEN p.order_no IS NULL OR r.order_no <> p.order_no OR p.state <> 'CLOSED'
  ELSE 1 END

-- name: the payment side and the order agree.checked
SELECT COUNT(*) FROM payment.payment_order

-- name: the payment side and the order agree.broken
SELECT p.order_no, 'order is ' || COALESCE(o.status, 'missing') || ' over ' || COALESCE(o.payable, 0) || ' paid by ' || COALESCE(o.transaction_id, '') || ', its payment is '
  || p.state || ' over ' || p.payable || ', paid ' || p.paid_amount || ' by ' || p.paid_transaction || ', refunded ' || p.refunded || ' / ' || COALESCE(f.done, 0)
  || ', reserved ' || p.refund_reserved || ' / ' || COALESCE(f.reserved, 0)
FROM payment.payment_order p LEFT JOIN "order".orders o ON o.order_no = p.order_no
LEFT JOIN (SELECT order_no, SUM(CASE state WHEN 'REFUNDED' THEN amount ELSE 0 END) AS done, SUM(CASE state WHEN 'RESERVED' THEN amount ELSE 0 END) AS reserved
           FROM payment.payment_refund GROUP BY order_no) f ON f.order_no = p.order_no
WHERE o.order_no IS NULL
   OR (p.state = 'PAID') <> (o.status IN ('PAID','SHIPPED','COMPLETED','REFUNDING','REFUNDED') AND o.payable > 0)
   OR (p.state = 'CLOSED') <> (o.status = 'CANCELED')
   OR (p.payable <> 0 AND (p.payable <> o.payable OR p.currency <> o.currency OR p.user_id <> o.user_id)) OR (p.payable = 0 AND p.state <> 'CLOSED')
   OR (p.state = 'PAID' AND (p.paid_amount <> p.payable OR p.paid_transaction <> o.transaction_id OR p.paid_channel <> o.channel)) OR (p.state <> 'PAID' AND p.paid_amount <> 0)
   OR p.refunded <> COALESCE(f.done, 0) OR p.refund_reserved <> COALESCE(f.reserved, 0)
UNION ALL
SELECT o.order_no, 'order is ' || o.status || ' over ' || o.payable || ', the payment side does not know it'
FROM "order".orders o LEFT JOIN payment.payment_order p ON p.order_no = o.order_no
WHERE p.order_no IS NULL AND (o.payable > 0 OR o.status = 'CANCELED')

-- name: no trade can take money for a finished order.checked
SELECT COUNT(*) FROM payment.payment_intent

-- name: no trade can take money for a finished order.broken
-- The channel takes no money for a trade that is paid or closed there. What it says counts, not what we hope.
SELECT i.trade_no, 'the payment is ' || COALESCE(p.state, 'missing') || ', the trade is ' || i.state || ' here and ' || COALESCE(t.state, 'open') || ' at the channel'
FROM payment.payment_intent i LEFT JOIN payment.payment_order p ON p.order_no = i.order_no LEFT JOIN world.channel_trade t ON t.trade_no = i.trade_no
WHERE p.order_no IS NULL OR (p.state IN ('PAID', 'CLOSED') AND t.trade_no IS NULL)
   OR (i.state = 'PAID') <> (i.trade_no IN (SELECT trade_no FROM payment.payment_receipt WHERE kind = 'payment.succeeded' AND class <> 'WRONG_MERCHANT'))

-- name: the channel's bill is our receipts, as multisets.checked
SELECT (SELECT COUNT(*) FROM world.channel_payment) + (SELECT COUNT(*) FROM payment.payment_receipt WHERE kind = 'payment.succeeded')

-- name: the channel's bill is our receipts, as multisets.broken
SELECT line, 'at the channel ' || SUM(theirs) || ' times, here ' || SUM(ours) || ' times'
FROM (
  SELECT transaction_id || ' ' || trade_no || ' ' || merchant || ' ' || amount || ' ' || currency AS line, 1 AS theirs, 0 AS ours FROM world.channel_payment
  UNION ALL
  SELECT transaction_id || ' ' || trade_no || ' ' || merchant || ' ' || amount || ' ' || currency, 0, 1 FROM payment.payment_receipt WHERE kind = 'payment.succeeded'
) GROUP BY line HAVING SUM(theirs) <> SUM(ours)

-- name: the channel's refunds are our refunds, as multisets.checked
SELECT (SELECT COUNT(*) FROM world.channel_refund) + (SELECT COUNT(*) FROM payment.payment_refund WHERE state = 'REFUNDED')
  + (SELECT COUNT(*) FROM payment.payment_receipt WHERE state = 'REFUNDED')

-- name: the channel's refunds are our refunds, as multisets.broken
SELECT line, 'at the channel ' || SUM(theirs) || ' times, here ' || SUM(ours) || ' times'
FROM (
  SELECT refund_id || ' ' || transaction_id || ' ' || amount || ' ' || currency AS line, 1 AS theirs, 0 AS ours FROM world.channel_refund
  UNION ALL
  SELECT channel_refund_id || ' ' || transaction_id || ' ' || amount || ' ' || currency, 0, 1 FROM payment.payment_refund WHERE state = 'REFUNDED'
  UNION ALL
  SELECT channel_refund_id || ' ' || transaction_id || ' ' || amount || ' ' || currency, 0, 1 FROM payment.payment_receipt WHERE state = 'REFUNDED'
) GROUP BY line HAVING SUM(theirs) <> SUM(ours)
UNION ALL
SELECT c.transaction_id, 'the channel gave ' || c.refunded || ' back, its refunds sum to ' || COALESCE(f.amount, 0)
FROM world.channel_payment c LEFT JOIN (SELECT transaction_id, SUM(amount) AS amount FROM world.channel_refund GROUP BY transaction_id) f ON f.transaction_id = c.transaction_id
WHERE c.refunded <> COALESCE(f.amount, 0)

-- name: refunds of orders are refunds of payments.checked
SELECT COUNT(*) FROM "order".refund

-- name: refunds of orders are refunds of payments.broken
SELECT f.refund_no, 'order side ' || f.status || ' over ' || f.cash || ', payment side ' || COALESCE(p.state, 'missing') || ' over ' || COALESCE(p.amount, 0)
FROM "order".refund f LEFT JOIN payment.payment_refund p ON p.refund_no = f.refund_no LEFT JOIN paid o ON o.order_no = f.order_no
WHERE o.order_no IS NULL
   OR f.cash > 0 AND (p.refund_no IS NULL OR p.amount <> f.cash OR p.order_no <> f.order_no OR p.currency <> o.currency OR p.transaction_id <> o.transaction_id
      OR (f.status = 'REFUNDED') <> (p.state = 'REFUNDED') OR (f.status = 'FAILED') <> (p.state = 'FAILED'))
   OR (f.cash = 0 AND (f.status <> 'REFUNDED' OR p.refund_no IS NOT NULL))
   OR f.status NOT IN ('REFUNDED', 'FAILED')
UNION ALL
SELECT p.refund_no, 'the payment side refunded ' || p.amount || ', the order side never asked for it'
FROM payment.payment_refund p LEFT JOIN "order".refund f ON f.refund_no = p.refund_no WHERE f.refund_no IS NULL

-- name: an order's lines sum to the order, its refunds to its lines.checked
SELECT COUNT(*) FROM "order".order_line

-- name: an order's lines sum to the order, its refunds to its lines.broken
SELECT o.order_no, 'goods ' || o.goods_total || ' / ' || COALESCE(l.amount, 0) || ', coupon ' || o.coupon_total || ' / ' || COALESCE(l.coupon, 0)
  || ', points ' || o.points_spent || ' / ' || COALESCE(l.points, 0) || ', payable ' || o.payable || ' / ' || COALESCE(l.payable, 0)
FROM "order".orders o
LEFT JOIN (SELECT order_no, SUM(amount) AS amount, SUM(coupon_share) AS coupon, SUM(points_share) AS points, SUM(payable) AS payable,
             SUM(amount <> quantity * unit_price) AS wrong, SUM(amount <> coupon_share + points_share + payable) AS unshared FROM "order".order_line GROUP BY order_no) l ON l.order_no = o.order_no
WHERE l.order_no IS NULL OR l.wrong > 0 OR l.amount <> o.goods_total OR l.coupon <> o.coupon_total OR l.points <> o.points_spent OR l.payable <> o.payable
   OR (o.payable_at > 0 AND (l.unshared > 0 OR o.coupon_total <> MIN(o.coupon_value, o.goods_total) OR o.points_spent <> MIN(o.points_locked, o.goods_total - o.coupon_total)
       OR o.payable <> o.goods_total - o.coupon_total - o.points_spent))
   OR (o.payable_at = 0 AND (o.coupon_total <> 0 OR o.points_spent <> 0 OR o.payable <> 0 OR o.status NOT IN ('CREATED', 'CLOSING', 'CANCELED')))
UNION ALL
SELECT l.order_no || ' line ' || l.line_no, 'refunded ' || l.refunded_quantity || ' pieces, coupon ' || l.refunded_coupon || ', points ' || l.refunded_points || ', cash ' || l.refunded_cash
  || '; its refunds sum to ' || COALESCE(f.quantity, 0) || ', ' || COALESCE(f.coupon, 0) || ', ' || COALESCE(f.points, 0) || ', ' || COALESCE(f.cash, 0)
FROM "order".order_line l LEFT JOIN "order".orders o ON o.order_no = l.order_no
LEFT JOIN (SELECT r.order_no, x.line_no, SUM(x.quantity) AS quantity, SUM(x.coupon_share) AS coupon, SUM(x.points_share) AS points, SUM(x.cash) AS cash, SUM(x.amount) AS amount
           FROM "order".refund r JOIN "order".refund_line x ON x.refund_no = r.refund_no WHERE r.status <> 'FAILED' GROUP BY r.order_no, x.line_no) f
  ON f.order_no = l.order_no AND f.line_no = l.line_no
WHERE o.order_no IS NULL OR l.refunded_quantity <> COALESCE(f.quantity, 0) OR l.refunded_coupon <> COALESCE(f.coupon, 0) OR l.refunded_points <> COALESCE(f.points, 0)
   OR l.refunded_cash <> COALESCE(f.cash, 0) OR COALESCE(f.amount, 0) <> COALESCE(f.coupon + f.points + f.cash, 0)
UNION ALL
SELECT r.refund_no, 'sums to ' || r.amount || ', ' || r.coupon_total || ', ' || r.points_back || ', ' || r.cash || '; its lines to '
  || COALESCE(x.amount, 0) || ', ' || COALESCE(x.coupon, 0) || ', ' || COALESCE(x.points, 0) || ', ' || COALESCE(x.cash, 0)
FROM "order".refund r
LEFT JOIN (SELECT refund_no, SUM(amount) AS amount, SUM(coupon_share) AS coupon, SUM(points_share) AS points, SUM(cash) AS cash FROM "order".refund_line GROUP BY refund_no) x ON x.refund_no = r.refund_no
WHERE r.amount IS NOT x.amount OR r.coupon_total IS NOT x.coupon OR r.points_back IS NOT x.points OR r.cash IS NOT x.cash
UNION ALL
SELECT x.refund_no || ' line ' || x.line_no, 'gives back what no line of the order says' FROM "order".refund_line x LEFT JOIN "order".refund r ON r.refund_no = x.refund_no
LEFT JOIN "order".order_line l ON l.order_no = r.order_no AND l.line_no = x.line_no AND l.sku = x.sku WHERE l.order_no IS NULL

-- name: an order is refunded when all of it came back.checked
SELECT COUNT(*) FROM paid

-- name: an order is refunded when all of it came back.broken
SELECT o.order_no, 'order is ' || o.status || ', ' || SUM(l.quantity - l.refunded_quantity) || ' pieces and ' || SUM(l.payable - l.refunded_cash) || ' of money are still its own'
FROM paid o JOIN "order".order_line l ON l.order_no = o.order_no
GROUP BY o.order_no
HAVING (o.status = 'REFUNDED') <> (SUM(l.quantity - l.refunded_quantity) = 0) OR (o.status = 'REFUNDED' AND SUM(l.payable - l.refunded_cash) <> 0) OR o.status = 'REFUNDING'

-- name: an order was placed once, with its own token.checked
SELECT COUNT(*) FROM "order".client_token_claim

-- name: an order was placed once, with its own token.broken
-- A claim leaves 14 days after it was made, and the order stays.
SELECT o.order_no, 'was claimed by ' || COUNT(c.token_id) || ' tokens' FROM "order".orders o
LEFT JOIN "order".client_token_claim c ON c.order_no = o.order_no AND c.user_id = o.user_id
GROUP BY o.order_no HAVING COUNT(c.token_id) > 1 OR (COUNT(c.token_id) = 0 AND o.created_at > :now - 13 * 86400 * 1000000)
UNION ALL
SELECT c.token_id, 'claimed order ' || c.order_no || ' of ' || c.user_id || ', which is not there'
FROM "order".client_token_claim c LEFT JOIN "order".orders o ON o.order_no = c.order_no AND o.user_id = c.user_id WHERE o.order_no IS NULL

-- name: the risk of every order was decided once.checked
SELECT COUNT(*) FROM risk.risk_decision

-- name: the risk of every order was decided once.broken
SELECT o.order_no, 'order is ' || o.status || ' over ' || o.goods_total || ' of ' || o.user_id || ', the decision is ' || COALESCE(d.approved || ' over ' || d.amount || ' of ' || d.user_id, 'missing')
FROM "order".orders o LEFT JOIN risk.risk_decision d ON d.order_no = o.order_no
WHERE d.order_no IS NULL OR d.user_id <> o.user_id OR d.amount <> o.goods_total OR d.currency <> o.currency
   OR (d.approved <> 1 AND o.status <> 'CANCELED')
UNION ALL
SELECT d.order_no, 'was decided on, but is not there' FROM risk.risk_decision d LEFT JOIN "order".orders o ON o.order_no = d.order_no WHERE o.order_no IS NULL

-- name: everything is in the state that its history says.checked
SELECT COUNT(*) FROM change

-- name: everything is in the state that its history says.broken
SELECT s.machine || ' ' || s.id, 'is ' || s.state || ', its history ends in ' || COALESCE(c.to_state, 'nothing') || COALESCE(' because of ' || c.cause, '')
FROM (SELECT 'order' AS machine, order_no AS id, status AS state FROM "order".orders
  UNION ALL SELECT 'refund', refund_no, status FROM "order".refund
  UNION ALL SELECT 'payment', order_no, state FROM payment.payment_order
  UNION ALL SELECT 'intent', trade_no, state FROM payment.payment_intent
  UNION ALL SELECT 'payment_refund', refund_no, state FROM payment.payment_refund
  UNION ALL SELECT 'stock', order_no, state FROM inventory.stock_order
  UNION ALL SELECT 'coupon', use_key, state FROM coupon.coupon_use
  UNION ALL SELECT 'points', order_no, state FROM points.points_order
  UNION ALL SELECT 'shipment', order_no, state FROM shipping.shipment) s
LEFT JOIN change c ON c.rowid = (SELECT l.rowid FROM change l WHERE l.machine = s.machine AND l.entity_id = s.id ORDER BY l.id DESC LIMIT 1)
WHERE c.to_state IS NOT s.state
UNION ALL
SELECT machine || ' ' || entity_id, to_state || ' (version ' || version || ') follows ' || COALESCE(before || ' (version ' || below || ')', 'nothing') || ' but says it came from ' || from_state FROM (
  SELECT machine, entity_id, from_state, to_state, version, LAG(to_state) OVER w AS before, LAG(version) OVER w AS below FROM change WINDOW w AS (PARTITION BY machine, entity_id ORDER BY id)
) WHERE COALESCE(before, '') <> from_state OR version <= COALESCE(below, 0)
UNION ALL
SELECT c.machine || ' ' || c.entity_id, 'went from ' || c.from_state || ' to ' || c.to_state || ', which is no move of it'
FROM change c LEFT JOIN legal g ON g.machine = c.machine AND g.from_state = c.from_state AND g.to_state = c.to_state WHERE g.machine IS NULL
UNION ALL
SELECT 'order ' || o.order_no, 'was paid by ' || o.channel || ':' || o.transaction_id || ', its history says ' || COALESCE(c.cause, 'nothing')
FROM paid o LEFT JOIN change c ON c.machine = 'order' AND c.entity_id = o.order_no AND c.to_state = 'PAID' WHERE c.cause IS NOT o.channel || ':' || o.transaction_id
UNION ALL
SELECT 'payment ' || p.order_no, 'was paid by ' || p.paid_channel || ':' || p.paid_transaction || ', its history says ' || COALESCE(c.cause, 'nothing')
FROM payment.payment_order p LEFT JOIN change c ON c.machine = 'payment' AND c.entity_id = p.order_no AND c.to_state = 'PAID'
WHERE p.state = 'PAID' AND c.cause IS NOT p.paid_channel || ':' || p.paid_transaction

-- name: every change of state has a cause.checked
SELECT COUNT(*) FROM change WHERE machine <> 'intent'

-- name: every change of state has a cause.broken
-- A customer's payment attempt begins with his request alone; everything else names what led to it.
SELECT c.machine || ' ' || c.entity_id, c.from_state || ' → ' || c.to_state || CASE c.cause_key WHEN '' THEN ' has no cause' ELSE ' says it was caused by ' || c.cause_key || ', which is not there' END
FROM change c LEFT JOIN cause n ON n.name = c.cause_key
WHERE c.machine <> 'intent' AND c.at >= :horizon AND n.name IS NULL
