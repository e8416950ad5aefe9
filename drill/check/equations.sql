-- The equations. Each is two statements: NAME.checked counts what was looked at, NAME.broken returns (key, detail) of every
-- row that breaks the law. Schemas are attached database files: "order".orders is orders in order.db.
-- Every statement reads whole tables: a check that samples proves nothing.

-- name: paid orders have exactly one applied payment of the right amount.checked
SELECT COUNT(*) FROM "order".orders WHERE status IN ('PAID','SHIPPED','COMPLETED','REFUNDING','REFUNDED')

-- name: paid orders have exactly one applied payment of the right amount.broken
SELECT o.order_no, 'order is ' || o.status || ' over ' || o.payable || ' but has ' || COUNT(r.transaction_id) || ' applied payments over ' || COALESCE(SUM(r.amount), 0)
FROM "order".orders o
LEFT JOIN payment.payment_receipt r ON r.order_no = o.order_no AND r.state = 'APPLIED'
WHERE o.status IN ('PAID','SHIPPED','COMPLETED','REFUNDING','REFUNDED')
GROUP BY o.order_no
HAVING (o.payable > 0 AND (COUNT(r.transaction_id) <> 1 OR SUM(r.amount) <> o.payable OR MAX(r.currency) <> o.currency OR MAX(r.transaction_id) <> o.transaction_id))
    OR (o.payable = 0 AND COUNT(r.transaction_id) <> 0)

-- name: unpaid and canceled orders keep no money.checked
SELECT COUNT(*) FROM "order".orders WHERE status IN ('CREATED','CLOSING','CANCELED')

-- name: unpaid and canceled orders keep no money.broken
SELECT o.order_no, 'order is ' || o.status || ' but a payment of ' || r.amount || ' is ' || r.state
FROM "order".orders o JOIN payment.payment_receipt r ON r.order_no = o.order_no
WHERE o.status IN ('CREATED','CLOSING','CANCELED') AND r.kind = 'payment.succeeded' AND r.state NOT IN ('REFUNDED','HELD')

-- name: payments that pay no order went back.checked
SELECT COUNT(*) FROM payment.payment_receipt WHERE class IN ('LATE','SECOND','WRONG_AMOUNT','UNKNOWN_ORDER')

-- name: payments that pay no order went back.broken
SELECT channel || ':' || transaction_id, class || ' over ' || amount || ' is ' || state
FROM payment.payment_receipt WHERE class IN ('LATE','SECOND','WRONG_AMOUNT','UNKNOWN_ORDER') AND state <> 'REFUNDED'

-- name: the payment side and the order agree.checked
SELECT COUNT(*) FROM payment.payment_order

-- name: the payment side and the order agree.broken
SELECT p.order_no, 'order is ' || COALESCE(o.status, 'missing') || ', its payment is ' || p.state
FROM payment.payment_order p LEFT JOIN "order".orders o ON o.order_no = p.order_no
WHERE o.order_no IS NULL
   OR (p.state = 'PAID') <> (o.status IN ('PAID','SHIPPED','COMPLETED','REFUNDING','REFUNDED') AND o.payable > 0)
   OR (p.state = 'CLOSED') <> (o.status = 'CANCELED')

-- name: the channel's bill is our receipts, as multisets.checked
SELECT (SELECT COUNT(*) FROM world.channel_payment) + (SELECT COUNT(*) FROM payment.payment_receipt WHERE kind = 'payment.succeeded')

-- name: the channel's bill is our receipts, as multisets.broken
SELECT line, 'at the channel ' || SUM(theirs) || ' times, here ' || SUM(ours) || ' times'
FROM (
  SELECT transaction_id || ' ' || merchant || ' ' || amount || ' ' || currency AS line, 1 AS theirs, 0 AS ours FROM world.channel_payment
  UNION ALL
  SELECT transaction_id || ' ' || merchant || ' ' || amount || ' ' || currency, 0, 1 FROM payment.payment_receipt WHERE kind = 'payment.succeeded'
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

-- name: refunds of orders are refunds of payments.checked
SELECT COUNT(*) FROM "order".refund

-- name: refunds of orders are refunds of payments.broken
SELECT f.refund_no, 'order side ' || f.status || ' over ' || f.cash || ', payment side ' || COALESCE(p.state, 'missing') || ' over ' || COALESCE(p.amount, 0)
FROM "order".refund f LEFT JOIN payment.payment_refund p ON p.refund_no = f.refund_no
WHERE f.cash > 0 AND (p.refund_no IS NULL OR p.amount <> f.cash OR p.order_no <> f.order_no
   OR (f.status = 'REFUNDED') <> (p.state = 'REFUNDED') OR (f.status = 'FAILED') <> (p.state = 'FAILED'))
   OR (f.cash = 0 AND f.status <> 'REFUNDED')
   OR f.status = 'REQUESTED'

-- name: an order's lines sum to the order, its refunds to its lines.checked
SELECT COUNT(*) FROM "order".orders

-- name: an order's lines sum to the order, its refunds to its lines.broken
SELECT o.order_no, 'goods ' || o.goods_total || ' / ' || COALESCE(l.amount, 0) || ', coupon ' || o.coupon_total || ' / ' || COALESCE(l.coupon, 0)
  || ', points ' || o.points_spent || ' / ' || COALESCE(l.points, 0) || ', payable ' || o.payable || ' / ' || COALESCE(l.payable, 0)
  || ', refunded ' || COALESCE(l.refunded, 0) || ' / ' || COALESCE(f.cash, 0)
FROM "order".orders o
LEFT JOIN (SELECT order_no, SUM(amount) AS amount, SUM(coupon_share) AS coupon, SUM(points_share) AS points, SUM(payable) AS payable,
             SUM(refunded_cash) AS refunded, SUM(amount <> quantity * unit_price) AS wrong FROM "order".order_line GROUP BY order_no) l ON l.order_no = o.order_no
LEFT JOIN (SELECT order_no, SUM(cash) AS cash FROM "order".refund WHERE status <> 'FAILED' GROUP BY order_no) f ON f.order_no = o.order_no
WHERE l.order_no IS NULL OR l.wrong > 0 OR l.amount <> o.goods_total OR l.refunded <> COALESCE(f.cash, 0)
   OR (o.payable_at > 0 AND (l.coupon <> o.coupon_total OR l.points <> o.points_spent OR l.payable <> o.payable
       OR o.goods_total <> o.coupon_total + o.points_spent + o.payable))

-- name: a refunded order is wholly refunded.checked
SELECT COUNT(*) FROM "order".orders WHERE status IN ('REFUNDING','REFUNDED')

-- name: a refunded order is wholly refunded.broken
SELECT o.order_no, 'order is ' || o.status || ', ' || SUM(l.quantity - l.refunded_quantity) || ' pieces and ' || SUM(l.payable - l.refunded_cash) || ' of money are not'
FROM "order".orders o JOIN "order".order_line l ON l.order_no = o.order_no WHERE o.status = 'REFUNDED'
GROUP BY o.order_no HAVING SUM(l.quantity - l.refunded_quantity) <> 0 OR SUM(l.payable - l.refunded_cash) <> 0
UNION ALL
SELECT order_no, 'order is still REFUNDING' FROM "order".orders WHERE status = 'REFUNDING'

-- name: orders are in the state that their history says.checked
SELECT (SELECT COUNT(*) FROM "order".machine_transition) + (SELECT COUNT(*) FROM payment.machine_transition) + (SELECT COUNT(*) FROM shipping.machine_transition)

-- name: orders are in the state that their history says.broken
SELECT o.order_no, 'order is ' || o.status || ', its history ends in ' || COALESCE(t.to_state, 'nothing')
FROM "order".orders o LEFT JOIN "order".machine_transition t ON t.id =
  (SELECT MAX(id) FROM "order".machine_transition WHERE machine = 'order' AND entity_id = o.order_no)
WHERE t.to_state IS NULL OR t.to_state <> o.status
UNION ALL
SELECT p.order_no, 'payment is ' || p.state || ', its history ends in ' || COALESCE(t.to_state, 'nothing')
FROM payment.payment_order p LEFT JOIN payment.machine_transition t ON t.id =
  (SELECT MAX(id) FROM payment.machine_transition WHERE machine = 'payment' AND entity_id = p.order_no)
WHERE t.to_state IS NULL OR t.to_state <> p.state
UNION ALL
SELECT entity_id, machine || ': ' || to_state || ' follows ' || COALESCE(before, 'nothing') || ' but says it came from ' || from_state FROM (
  SELECT machine, entity_id, from_state, to_state, LAG(to_state) OVER (PARTITION BY machine, entity_id ORDER BY id) AS before FROM "order".machine_transition
  UNION ALL
  SELECT machine, entity_id, from_state, to_state, LAG(to_state) OVER (PARTITION BY machine, entity_id ORDER BY id) FROM payment.machine_transition
  UNION ALL
  SELECT machine, entity_id, from_state, to_state, LAG(to_state) OVER (PARTITION BY machine, entity_id ORDER BY id) FROM shipping.machine_transition
) WHERE COALESCE(before, '') <> from_state

-- name: every order's stock is held, deducted, returned or free as its state says.checked
SELECT COUNT(*) FROM (SELECT order_no, sku FROM "order".order_line GROUP BY order_no, sku)

-- name: every order's stock is held, deducted, returned or free as its state says.broken
SELECT l.order_no || ' ' || l.sku, 'order is ' || o.status || ' over ' || l.quantity || ' pieces, ' || COALESCE(f.back, 0) || ' returned; stock is '
  || COALESCE(h.state, 'not held') || ' over ' || COALESCE(h.quantity, 0) || ', ' || COALESCE(h.returned, 0) || ' returned'
FROM (SELECT order_no, sku, SUM(quantity) AS quantity FROM "order".order_line GROUP BY order_no, sku) l
JOIN "order".orders o ON o.order_no = l.order_no
LEFT JOIN inventory.stock_hold h ON h.order_no = l.order_no AND h.sku = l.sku
LEFT JOIN (SELECT r.order_no, x.sku, SUM(x.quantity) AS back FROM "order".refund r JOIN "order".refund_line x ON x.refund_no = r.refund_no
           WHERE r.status = 'REFUNDED' GROUP BY r.order_no, x.sku) f ON f.order_no = l.order_no AND f.sku = l.sku
WHERE (o.status IN ('PAID','SHIPPED','COMPLETED','REFUNDING','REFUNDED')
       AND (h.state IS NULL OR h.state <> 'DEDUCTED' OR h.quantity <> l.quantity OR h.returned <> COALESCE(f.back, 0)))
   OR (o.status = 'CANCELED' AND h.state IS NOT NULL AND h.state <> 'RELEASED')
UNION ALL
SELECT h.order_no || ' ' || h.sku, 'stock is ' || h.state || ' for an order that does not want it'
FROM inventory.stock_hold h LEFT JOIN "order".order_line l ON l.order_no = h.order_no AND l.sku = h.sku WHERE l.order_no IS NULL

-- name: stock is the sum of its flows.checked
SELECT COUNT(*) FROM inventory.stock

-- name: stock is the sum of its flows.broken
SELECT s.sku, 'on hand ' || s.on_hand || ' / ' || COALESCE(f.on_hand, 0) || ', reserved ' || s.reserved || ' / ' || COALESCE(f.reserved, 0)
  || ', sold ' || s.sold || ' / ' || COALESCE(f.sold, 0)
FROM inventory.stock s LEFT JOIN (
  SELECT sku, SUM(CASE kind WHEN 'RECEIVE' THEN quantity WHEN 'DEDUCT' THEN -quantity WHEN 'RETURN' THEN quantity ELSE 0 END) AS on_hand,
    SUM(CASE kind WHEN 'RESERVE' THEN quantity WHEN 'RELEASE' THEN -quantity WHEN 'DEDUCT' THEN -quantity ELSE 0 END) AS reserved,
    SUM(CASE kind WHEN 'DEDUCT' THEN quantity WHEN 'RETURN' THEN -quantity ELSE 0 END) AS sold
  FROM inventory.stock_flow GROUP BY sku) f ON f.sku = s.sku
WHERE s.on_hand <> COALESCE(f.on_hand, 0) OR s.reserved <> COALESCE(f.reserved, 0) OR s.sold <> COALESCE(f.sold, 0)
   OR s.on_hand < 0 OR s.reserved < 0 OR s.sold < 0 OR s.reserved > s.on_hand
UNION ALL
SELECT f.sku, 'flows of a SKU without stock' FROM inventory.stock_flow f LEFT JOIN inventory.stock s ON s.sku = f.sku WHERE s.sku IS NULL

-- name: stock received is sold, held or free.checked
SELECT COUNT(*) FROM inventory.stock

-- name: stock received is sold, held or free.broken
SELECT s.sku, 'received ' || COALESCE(r.received, 0) || ', sold ' || s.sold || ', held ' || COALESCE(h.held, 0) || ', free ' || (s.on_hand - s.reserved)
FROM inventory.stock s
LEFT JOIN (SELECT sku, SUM(quantity) AS received FROM inventory.stock_flow WHERE kind = 'RECEIVE' GROUP BY sku) r ON r.sku = s.sku
LEFT JOIN (SELECT sku, SUM(CASE state WHEN 'HELD' THEN quantity ELSE 0 END) AS held, SUM(CASE state WHEN 'DEDUCTED' THEN quantity - returned ELSE 0 END) AS sold
           FROM inventory.stock_hold GROUP BY sku) h ON h.sku = s.sku
WHERE COALESCE(r.received, 0) <> s.sold + COALESCE(h.held, 0) + s.on_hand - s.reserved OR s.sold <> COALESCE(h.sold, 0)

-- name: every hold ends once.checked
SELECT COUNT(*) FROM inventory.stock_hold

-- name: every hold ends once.broken
SELECT h.order_no || ' ' || h.sku, 'hold of ' || h.quantity || ' is ' || h.state || '; reserved ' || f.reserved || ', released ' || f.released || ', deducted ' || f.deducted || ', returned ' || f.returned
FROM inventory.stock_hold h JOIN (
  SELECT order_no, sku, SUM(CASE kind WHEN 'RESERVE' THEN quantity ELSE 0 END) AS reserved, SUM(CASE kind WHEN 'RELEASE' THEN quantity ELSE 0 END) AS released,
    SUM(CASE kind WHEN 'DEDUCT' THEN quantity ELSE 0 END) AS deducted, SUM(CASE kind WHEN 'RETURN' THEN quantity ELSE 0 END) AS returned
  FROM inventory.stock_flow WHERE order_no <> '' GROUP BY order_no, sku) f ON f.order_no = h.order_no AND f.sku = h.sku
WHERE f.reserved <> h.quantity OR f.returned <> h.returned
   OR f.released <> CASE h.state WHEN 'RELEASED' THEN h.quantity ELSE 0 END
   OR f.deducted <> CASE h.state WHEN 'DEDUCTED' THEN h.quantity ELSE 0 END

-- name: a coupon is used by exactly the orders that had it.checked
SELECT COUNT(*) FROM "order".orders WHERE coupon_code <> ''

-- name: a coupon is used by exactly the orders that had it.broken
SELECT o.order_no, 'order is ' || o.status || ' with coupon ' || o.coupon_code || ' worth ' || o.coupon_total || '; uses: ' || COALESCE(GROUP_CONCAT(u.state), 'none')
FROM "order".orders o LEFT JOIN coupon.coupon_use u ON u.biz_id = o.order_no AND u.code = o.coupon_code
WHERE o.coupon_code <> ''
GROUP BY o.order_no
HAVING (o.status IN ('PAID','SHIPPED','COMPLETED','REFUNDING') AND (COUNT(u.use_key) <> 1 OR MAX(u.state) <> 'REDEEMED'))
    OR (o.status = 'REFUNDED' AND (COUNT(u.use_key) <> 1 OR MAX(u.state) <> 'RETURNED'))
    OR (o.status = 'CANCELED' AND SUM(u.state NOT IN ('RELEASED','REJECTED')) > 0)
UNION ALL
SELECT u.biz_id, 'coupon ' || u.code || ' is ' || u.state || ' for an order that does not have it'
FROM coupon.coupon_use u LEFT JOIN "order".orders o ON o.order_no = u.biz_id AND o.coupon_code = u.code WHERE o.order_no IS NULL

-- name: coupon counters are their uses, within the limits.checked
SELECT COUNT(*) FROM coupon.coupon

-- name: coupon counters are their uses, within the limits.broken
SELECT c.code, 'locked ' || c.locked || ' / ' || COALESCE(u.locked, 0) || ', redeemed ' || c.redeemed || ' / ' || COALESCE(u.redeemed, 0) || ', limit ' || c.total_limit
FROM coupon.coupon c LEFT JOIN (SELECT code, SUM(state = 'LOCKED') AS locked, SUM(state = 'REDEEMED') AS redeemed FROM coupon.coupon_use GROUP BY code) u ON u.code = c.code
WHERE c.locked <> COALESCE(u.locked, 0) OR c.redeemed <> COALESCE(u.redeemed, 0) OR c.locked + c.redeemed > c.total_limit

-- name: every paid order granted its points once.checked
SELECT COUNT(*) FROM "order".orders WHERE status IN ('PAID','SHIPPED','COMPLETED','REFUNDING','REFUNDED')

-- name: every paid order granted its points once.broken
-- One point per whole unit of what was paid, at least one; a unit has as many minor units as the currency says (ISO 4217).
SELECT o.order_no, 'due ' || o.due || ', granted ' || COALESCE(p.granted, 0) || ' in ' || COALESCE(p.n, 0) || ' entries; reversed ' || COALESCE(p.reversed, 0) || ', spent ' || COALESCE(p.spent, 0) || ' of ' || o.points_spent
FROM (SELECT order_no, status, points_spent, MAX(1, payable / CASE WHEN currency IN ('JPY','KRW','VND','CLP','ISK','XAF','XOF') THEN 1 WHEN currency IN ('KWD','BHD','OMR','JOD','TND') THEN 1000 ELSE 100 END) AS due
      FROM "order".orders WHERE status IN ('PAID','SHIPPED','COMPLETED','REFUNDING','REFUNDED')) o
LEFT JOIN (SELECT order_no, SUM(kind = 'ORDER_POINT') AS n, SUM(CASE kind WHEN 'ORDER_POINT' THEN points ELSE 0 END) AS granted,
             -SUM(CASE kind WHEN 'POINT_REVERSAL' THEN points ELSE 0 END) AS reversed, -SUM(CASE kind WHEN 'POINT_SPEND' THEN points ELSE 0 END) AS spent
           FROM points.points_entry GROUP BY order_no) p ON p.order_no = o.order_no
WHERE COALESCE(p.n, 0) <> 1 OR p.granted <> o.due OR p.spent <> o.points_spent OR (o.status = 'REFUNDED' AND p.reversed <> o.due) OR p.reversed > o.due OR p.reversed < 0
UNION ALL
SELECT p.order_no, 'order is ' || COALESCE(o.status, 'missing') || ' but its points sum to ' || SUM(p.points) || ' with ' || SUM(p.locked) || ' locked'
FROM points.points_entry p LEFT JOIN "order".orders o ON o.order_no = p.order_no
WHERE p.order_no <> '' AND (o.order_no IS NULL OR o.status IN ('CREATED','CLOSING','CANCELED'))
GROUP BY p.order_no HAVING SUM(p.points) <> 0 OR (SUM(p.locked) <> 0 AND COALESCE(o.status, 'CANCELED') = 'CANCELED')

-- name: a points balance is the sum of its rows.checked
SELECT COUNT(*) FROM points.points_account

-- name: a points balance is the sum of its rows.broken
SELECT a.user_id, 'balance ' || a.balance || ', debt ' || a.debt || ', rows ' || COALESCE(e.points, 0) || '; locked ' || a.locked || ', rows ' || COALESCE(e.locked, 0)
FROM points.points_account a LEFT JOIN (SELECT user_id, SUM(points) AS points, SUM(locked) AS locked FROM points.points_entry GROUP BY user_id) e ON e.user_id = a.user_id
WHERE a.balance - a.debt <> COALESCE(e.points, 0) OR a.locked <> COALESCE(e.locked, 0)
UNION ALL
SELECT e.user_id, 'points rows without an account' FROM points.points_entry e LEFT JOIN points.points_account a ON a.user_id = e.user_id WHERE a.user_id IS NULL

-- name: one shipment per paid order, one booking per shipment.checked
SELECT COUNT(*) FROM "order".orders

-- name: one shipment per paid order, one booking per shipment.broken
SELECT o.order_no, 'order is ' || o.status || ' with ' || COUNT(s.order_no) || ' shipments' || COALESCE(', ' || MAX(s.state), '')
FROM "order".orders o LEFT JOIN shipping.shipment s ON s.order_no = o.order_no
GROUP BY o.order_no
HAVING (o.status IN ('PAID','SHIPPED','COMPLETED') AND (COUNT(s.order_no) <> 1 OR MAX(s.state) = 'CANCELED'))
    OR (o.status IN ('CREATED','CLOSING','CANCELED') AND COUNT(s.order_no) <> 0)
    OR (o.status = 'SHIPPED' AND MAX(s.state) NOT IN ('DISPATCHED','DELIVERED')) OR (o.status = 'COMPLETED' AND MAX(s.state) <> 'DELIVERED')
UNION ALL
SELECT b.booking_key, 'the carrier has a booking that no shipment asked for'
FROM world.carrier_booking b LEFT JOIN shipping.outside_call c ON c.call_key = b.booking_key WHERE c.id IS NULL AND b.tracking_no <> ''

-- name: every journal balances and the whole ledger balances.checked
SELECT COUNT(*) FROM ledger.posting

-- name: every journal balances and the whole ledger balances.broken
SELECT j.journal_key, 'debits ' || COALESCE(SUM(p.debit), 0) || ', credits ' || COALESCE(SUM(p.credit), 0)
FROM ledger.journal j LEFT JOIN ledger.posting p ON p.journal_key = j.journal_key
GROUP BY j.journal_key, p.currency HAVING COALESCE(SUM(p.debit), 0) <> COALESCE(SUM(p.credit), 0) OR (COUNT(p.line_no) = 0 AND j.kind <> 'POINT_REVERSAL')
UNION ALL
SELECT p.journal_key, 'a posting without its journal' FROM ledger.posting p LEFT JOIN ledger.journal j ON j.journal_key = p.journal_key WHERE j.journal_key IS NULL

-- name: the suspense account is empty.checked
SELECT COUNT(*) FROM ledger.posting WHERE account = 'suspense'

-- name: the suspense account is empty.broken
SELECT currency, 'holds ' || (SUM(credit) - SUM(debit)) FROM ledger.posting WHERE account = 'suspense' GROUP BY currency HAVING SUM(credit) <> SUM(debit)

-- name: money paid is orders paid is ledger postings.checked
SELECT COUNT(*) FROM payment.payment_receipt WHERE state = 'APPLIED'

-- name: money paid is orders paid is ledger postings.broken
SELECT 'all orders in ' || currency, 'applied receipts ' || SUM(receipts) || ', paid orders ' || SUM(orders) || ', posted ' || SUM(posted) FROM (
  SELECT currency, SUM(amount) AS receipts, 0 AS orders, 0 AS posted FROM payment.payment_receipt WHERE state = 'APPLIED' GROUP BY currency
  UNION ALL
  SELECT currency, 0, SUM(payable), 0 FROM "order".orders WHERE status IN ('PAID','SHIPPED','COMPLETED','REFUNDING','REFUNDED') GROUP BY currency
  UNION ALL
  SELECT p.currency, 0, 0, SUM(p.debit) FROM ledger.posting p JOIN ledger.journal j ON j.journal_key = p.journal_key
  WHERE j.kind = 'ORDER_PAID' AND p.account = 'suspense' GROUP BY p.currency
) GROUP BY currency HAVING SUM(receipts) <> SUM(orders) OR SUM(orders) <> SUM(posted)

-- name: everything that moved money or points is posted once.checked
SELECT COUNT(*) FROM ledger.journal

-- name: everything that moved money or points is posted once.broken
SELECT due.journal_key, 'is not in the ledger' FROM (
  SELECT 'RECEIPT:' || channel || ':' || transaction_id AS journal_key FROM payment.payment_receipt WHERE kind = 'payment.succeeded' AND class <> 'WRONG_MERCHANT'
  UNION ALL SELECT 'UNAPPLIED_REFUND:' || channel || ':' || transaction_id FROM payment.payment_receipt WHERE state = 'REFUNDED'
  UNION ALL SELECT 'ORDER_PAID:' || order_no FROM "order".orders WHERE status IN ('PAID','SHIPPED','COMPLETED','REFUNDING','REFUNDED')
  UNION ALL SELECT 'ORDER_POINT:' || order_no FROM "order".orders WHERE status IN ('PAID','SHIPPED','COMPLETED','REFUNDING','REFUNDED')
  UNION ALL SELECT 'REFUND:' || refund_no FROM payment.payment_refund WHERE state = 'REFUNDED'
  UNION ALL SELECT 'ORDER_REFUND:' || refund_no FROM "order".refund WHERE status = 'REFUNDED'
) due LEFT JOIN ledger.journal j ON j.journal_key = due.journal_key WHERE j.journal_key IS NULL
UNION ALL
SELECT j.journal_key, 'is in the ledger, but nothing calls for it' FROM ledger.journal j
WHERE (j.kind = 'ORDER_PAID' AND NOT EXISTS (SELECT 1 FROM "order".orders o WHERE 'ORDER_PAID:' || o.order_no = j.journal_key AND o.status IN ('PAID','SHIPPED','COMPLETED','REFUNDING','REFUNDED')))
   OR (j.kind = 'RECEIPT' AND NOT EXISTS (SELECT 1 FROM payment.payment_receipt r WHERE 'RECEIPT:' || r.channel || ':' || r.transaction_id = j.journal_key))
   OR (j.kind = 'REFUND' AND NOT EXISTS (SELECT 1 FROM payment.payment_refund r WHERE 'REFUND:' || r.refund_no = j.journal_key AND r.state = 'REFUNDED'))

-- name: the channel account is receipts less refunds.checked
SELECT COUNT(*) FROM ledger.posting WHERE account LIKE 'channel:%'

-- name: the channel account is receipts less refunds.broken
SELECT account || ' ' || currency, 'ledger ' || SUM(ledger) || ', the channel says ' || SUM(channel) FROM (
  SELECT account, currency, SUM(debit) - SUM(credit) AS ledger, 0 AS channel FROM ledger.posting WHERE account LIKE 'channel:%' GROUP BY account, currency
  UNION ALL
  SELECT 'channel:' || r.channel, r.currency, 0, SUM(p.amount - p.refunded) FROM payment.payment_receipt r JOIN world.channel_payment p ON p.transaction_id = r.transaction_id
  WHERE r.kind = 'payment.succeeded' AND r.class <> 'WRONG_MERCHANT' GROUP BY r.channel, r.currency
) GROUP BY account, currency HAVING SUM(ledger) <> SUM(channel)

-- name: customers were told once.checked
SELECT COUNT(*) FROM notification.notification

-- name: customers were told once.broken
SELECT o.order_no, 'order is ' || o.status || ' but ' || n.missing || ' was not told' FROM "order".orders o JOIN (
  SELECT order_no, 'OrderPaid' AS missing FROM "order".orders WHERE status IN ('PAID','SHIPPED','COMPLETED','REFUNDING','REFUNDED')
  UNION ALL SELECT order_no, 'OrderCanceled' FROM "order".orders WHERE status = 'CANCELED'
) n ON n.order_no = o.order_no
WHERE NOT EXISTS (SELECT 1 FROM world.messenger_message m WHERE m.message_key = 'NOTIFY:' || n.missing || ':' || o.order_no)
UNION ALL
SELECT m.message_key, 'the messenger sent something that nobody asked for'
FROM world.messenger_message m LEFT JOIN notification.outside_call c ON c.call_key = m.message_key WHERE c.id IS NULL

-- name: a compensation reverses an effect of its own order.checked
SELECT COUNT(*) FROM (/*union:SELECT effect_key FROM SCHEMA.effect WHERE reverses <> ''*/)

-- name: a compensation reverses an effect of its own order.broken
SELECT effect_key, 'reverses ' || reverses || ', which is not there' FROM (/*union:
  SELECT e.effect_key, e.reverses FROM SCHEMA.effect e LEFT JOIN SCHEMA.effect r ON r.effect_key = e.reverses AND r.order_no = e.order_no WHERE e.reverses <> '' AND r.effect_key IS NULL*/)

-- name: every effect has a cause.checked
SELECT COUNT(*) FROM (/*union:SELECT effect_key FROM SCHEMA.effect*/)

-- name: every effect has a cause.broken
-- A cause is an event that some service wrote, a call that was made, or a request that was recorded.
SELECT effect_key, CASE cause WHEN '' THEN 'has no cause' ELSE 'says it was caused by ' || cause || ', which is not there' END FROM (/*union:SELECT effect_key, cause, at FROM SCHEMA.effect*/) e
WHERE e.at >= :horizon AND (e.cause = '' OR NOT EXISTS (SELECT 1 FROM cause c WHERE c.name = e.cause))

-- name: every event was applied by every service that wants it.checked
SELECT COUNT(*) FROM event e JOIN subscription s ON s.type = e.type

-- name: every event was applied by every service that wants it.broken
SELECT e.event_key || ' → ' || s.consumer, 'was sent but not applied'
FROM event e JOIN subscription s ON s.type = e.type LEFT JOIN mark m ON m.consumer = s.consumer AND m.key_digest = e.key_digest
WHERE m.key_digest IS NULL AND e.sent = 1

-- name: nothing was applied that nobody wrote.checked
SELECT COUNT(*) FROM mark

-- name: nothing was applied that nobody wrote.broken
-- A discarded dead letter leaves its mark, also when its event could not be read.
SELECT m.consumer || ' ' || HEX(m.key_digest), 'was applied, but no outbox has such an event'
FROM mark m LEFT JOIN event e ON e.key_digest = m.key_digest
WHERE e.key_digest IS NULL AND m.dead = 0 AND m.marked_at >= :horizon

-- name: no event waits to be sent or applied.checked
SELECT COUNT(*) FROM event

-- name: no event waits to be sent or applied.broken
SELECT where_ || ' ' || key_, 'is not done: ' || why FROM (/*union:
  SELECT 'SCHEMA' AS where_, e.event_key AS key_, 'pending in the outbox' AS why FROM SCHEMA.outbox_pending p JOIN SCHEMA.outbox_event e ON e.id = p.event_id
  UNION ALL SELECT 'SCHEMA', e.event_key, 'overdue in the outbox' FROM SCHEMA.outbox_delayed d JOIN SCHEMA.outbox_event e ON e.id = d.event_id WHERE d.deliver_at < :now
  UNION ALL SELECT 'SCHEMA', e.event_key, 'behind a blocked aggregate' FROM SCHEMA.outbox_waiting w JOIN SCHEMA.outbox_event e ON e.id = w.event_id
  UNION ALL SELECT 'SCHEMA', event_key, 'waits in the inbox: ' || last_error FROM SCHEMA.inbox_waiting*/)

-- name: no dead letter is open.checked
SELECT COUNT(*) FROM (/*union:SELECT id FROM SCHEMA.inbox_dead*/)

-- name: no dead letter is open.broken
SELECT where_ || ' ' || key_, why FROM (/*union:
  SELECT 'SCHEMA' AS where_, e.event_key AS key_, d.error AS why FROM SCHEMA.outbox_dead d JOIN SCHEMA.outbox_event e ON e.id = d.event_id
  UNION ALL SELECT 'SCHEMA', event_key, error FROM SCHEMA.inbox_dead WHERE state = 'OPEN'*/)

-- name: no call to the outside is left or was given up.checked
SELECT COUNT(*) FROM (/*union:SELECT id FROM SCHEMA.outside_call*/)

-- name: no call to the outside is left or was given up.broken
SELECT where_ || ' ' || kind || ' ' || call_key, CASE state WHEN 3 THEN 'was given up: ' ELSE 'is not done: ' END || error FROM (/*union:
  SELECT 'SCHEMA' AS where_, kind, call_key, state, error, next_at FROM SCHEMA.outside_call WHERE state IN (0, 1)
  UNION ALL SELECT 'SCHEMA', kind, call_key, state, error, next_at FROM SCHEMA.outside_call WHERE state = 3 AND kind NOT IN ('channel.refund','receipt.refund')*/)
