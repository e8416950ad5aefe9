-- Equations about goods, coupons, points, parcels and messages. See money.sql for how they are written.

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
WHERE (h.order_no IS NOT NULL AND (h.quantity <> l.quantity OR h.returned <> COALESCE(f.back, 0)))
   OR (o.status IN ('PAID','SHIPPED','COMPLETED','REFUNDING','REFUNDED') AND h.state IS NOT 'DEDUCTED')
   OR (o.status = 'CANCELED' AND COALESCE(h.state, 'RELEASED') <> 'RELEASED')
   OR (o.status = 'CREATED' AND o.payable_at > 0 AND h.state IS NOT 'HELD')
UNION ALL
SELECT h.order_no || ' ' || h.sku, 'stock is ' || h.state || ' for an order that does not want it'
FROM inventory.stock_hold h LEFT JOIN "order".order_line l ON l.order_no = h.order_no AND l.sku = h.sku WHERE l.order_no IS NULL
UNION ALL
SELECT o.order_no, 'order is ' || o.status || ', the inventory says ' || COALESCE(s.state, 'nothing')
FROM "order".orders o LEFT JOIN inventory.stock_order s ON s.order_no = o.order_no
WHERE s.order_no IS NULL OR s.user_id <> o.user_id OR (s.state = 'DEDUCTED') <> (o.status IN ('PAID','SHIPPED','COMPLETED','REFUNDING','REFUNDED'))
   OR (o.status = 'CANCELED') <> (s.state IN ('RELEASED', 'REJECTED'))
   OR EXISTS (SELECT 1 FROM inventory.stock_hold h WHERE h.order_no = s.order_no AND h.state <> s.state)
UNION ALL
SELECT s.order_no, 'the inventory knows an order that is not there' FROM inventory.stock_order s LEFT JOIN "order".orders o ON o.order_no = s.order_no WHERE o.order_no IS NULL

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
SELECT s.sku, 'received ' || COALESCE(r.received, 0) || ', sold ' || s.sold || ' / ' || COALESCE(h.sold, 0) || ', held ' || COALESCE(h.held, 0) || ', free ' || (s.on_hand - s.reserved)
FROM inventory.stock s
LEFT JOIN (SELECT sku, SUM(quantity) AS received FROM inventory.stock_flow WHERE kind = 'RECEIVE' GROUP BY sku) r ON r.sku = s.sku
LEFT JOIN (SELECT sku, SUM(CASE state WHEN 'HELD' THEN quantity ELSE 0 END) AS held, SUM(CASE state WHEN 'DEDUCTED' THEN quantity - returned ELSE 0 END) AS sold
           FROM inventory.stock_hold GROUP BY sku) h ON h.sku = s.sku
WHERE COALESCE(r.received, 0) <> s.sold + COALESCE(h.held, 0) + s.on_hand - s.reserved OR s.sold <> COALESCE(h.sold, 0)

-- name: every hold ends once.checked
SELECT COUNT(*) FROM inventory.stock_hold

-- name: every hold ends once.broken
SELECT h.order_no || ' ' || h.sku, 'hold of ' || h.quantity || ' is ' || h.state || '; reserved ' || COALESCE(f.reserved, 0) || ', released ' || COALESCE(f.released, 0)
  || ', deducted ' || COALESCE(f.deducted, 0) || ', returned ' || COALESCE(f.returned, 0) || ' / ' || h.returned
FROM inventory.stock_hold h LEFT JOIN (
  SELECT order_no, sku, SUM(CASE kind WHEN 'RESERVE' THEN quantity ELSE 0 END) AS reserved, SUM(CASE kind WHEN 'RELEASE' THEN quantity ELSE 0 END) AS released,
    SUM(CASE kind WHEN 'DEDUCT' THEN quantity ELSE 0 END) AS deducted, SUM(CASE kind WHEN 'RETURN' THEN quantity ELSE 0 END) AS returned
  FROM inventory.stock_flow WHERE order_no <> '' GROUP BY order_no, sku) f ON f.order_no = h.order_no AND f.sku = h.sku
WHERE COALESCE(f.reserved, 0) <> h.quantity OR COALESCE(f.returned, 0) <> h.returned
   OR COALESCE(f.released, 0) <> CASE h.state WHEN 'RELEASED' THEN h.quantity ELSE 0 END
   OR COALESCE(f.deducted, 0) <> CASE h.state WHEN 'DEDUCTED' THEN h.quantity ELSE 0 END
UNION ALL
SELECT f.flow_key, 'moved stock of an order that holds none' FROM inventory.stock_flow f
LEFT JOIN inventory.stock_hold h ON h.order_no = f.order_no AND h.sku = f.sku WHERE h.order_no IS NULL AND f.kind <> 'RECEIVE'

-- name: a coupon is used by exactly the orders that had it.checked
SELECT COUNT(*) FROM "order".orders WHERE coupon_code <> ''

-- name: a coupon is used by exactly the orders that had it.broken
SELECT o.order_no, 'order is ' || o.status || ' with coupon ' || o.coupon_code || ' worth ' || o.coupon_value || '; uses: ' || COALESCE(GROUP_CONCAT(u.state || ' over ' || u.amount || ' by ' || u.user_id), 'none')
FROM "order".orders o LEFT JOIN coupon.coupon_use u ON u.biz_type = 'order' AND u.biz_id = o.order_no AND u.code = o.coupon_code
WHERE o.coupon_code <> ''
GROUP BY o.order_no
HAVING COUNT(u.use_key) <> 1 OR MAX(u.user_id) <> o.user_id OR (o.payable_at > 0 AND MAX(u.amount) <> o.coupon_value)
    OR (o.status IN ('PAID','SHIPPED','COMPLETED','REFUNDING') AND MAX(u.state) <> 'REDEEMED')
    OR (o.status = 'REFUNDED' AND MAX(u.state) <> 'RETURNED')
    OR (o.status = 'CANCELED' AND MAX(u.state) NOT IN ('RELEASED','REJECTED'))
UNION ALL
SELECT u.use_key, 'coupon ' || u.code || ' is ' || u.state || ' for an order that does not have it'
FROM coupon.coupon_use u LEFT JOIN "order".orders o ON o.order_no = u.biz_id AND o.coupon_code = u.code AND u.biz_type = 'order' WHERE o.order_no IS NULL

-- name: coupon counters are their uses, within the limits.checked
SELECT COUNT(*) FROM coupon.coupon

-- name: coupon counters are their uses, within the limits.broken
SELECT c.code, 'locked ' || c.locked || ' / ' || COALESCE(u.locked, 0) || ', redeemed ' || c.redeemed || ' / ' || COALESCE(u.redeemed, 0) || ', limit ' || c.total_limit
FROM coupon.coupon c LEFT JOIN (SELECT code, SUM(state = 'LOCKED') AS locked, SUM(state = 'REDEEMED') AS redeemed FROM coupon.coupon_use GROUP BY code) u ON u.code = c.code
WHERE c.locked <> COALESCE(u.locked, 0) OR c.redeemed <> COALESCE(u.redeemed, 0) OR c.locked + c.redeemed > c.total_limit
UNION ALL
SELECT v.code || ' ' || v.user_id, 'counts ' || v.uses || ' uses of this customer, there are ' || COALESCE(u.n, 0) || '; the limit is ' || COALESCE(c.per_user_limit, 0)
FROM coupon.coupon_user v LEFT JOIN coupon.coupon c ON c.code = v.code
LEFT JOIN (SELECT code, user_id, COUNT(*) AS n FROM coupon.coupon_use WHERE state IN ('LOCKED', 'REDEEMED') GROUP BY code, user_id) u ON u.code = v.code AND u.user_id = v.user_id
WHERE c.code IS NULL OR v.uses <> COALESCE(u.n, 0) OR v.uses > c.per_user_limit
UNION ALL
SELECT u.use_key, 'coupon ' || u.code || ' of ' || u.user_id || ' is ' || u.state || ' but not counted' FROM coupon.coupon_use u
LEFT JOIN coupon.coupon_user v ON v.code = u.code AND v.user_id = u.user_id WHERE u.state IN ('LOCKED', 'REDEEMED') AND v.code IS NULL

-- name: every paid order granted its points once.checked
SELECT COUNT(*) FROM paid

-- name: every paid order granted its points once.broken
-- One point per whole unit of what was paid, at least one; a unit has as many minor units as the currency says (ISO 4217).
-- Refunds take granted points back in proportion to the cash so far, a full one takes them all.
SELECT o.order_no, 'due ' || o.due || ', granted ' || COALESCE(p.granted, 0) || ' in ' || COALESCE(p.n, 0) || ' entries; reversed ' || COALESCE(p.reversed, 0)
  || ' / ' || CASE WHEN o.status = 'REFUNDED' THEN o.due WHEN o.payable = 0 THEN 0 ELSE o.due * COALESCE(f.cash, 0) / o.payable END
FROM (SELECT order_no, user_id, status, payable, MAX(1, payable / CASE WHEN currency IN ('JPY','KRW','VND','CLP','ISK','XAF','XOF') THEN 1 WHEN currency IN ('KWD','BHD','OMR','JOD','TND') THEN 1000 ELSE 100 END) AS due
      FROM paid) o
LEFT JOIN (SELECT order_no, SUM(kind = 'ORDER_POINT') AS n, SUM(CASE kind WHEN 'ORDER_POINT' THEN points ELSE 0 END) AS granted,
             -SUM(CASE kind WHEN 'POINT_REVERSAL' THEN points ELSE 0 END) AS reversed, COUNT(DISTINCT user_id) AS users, MAX(user_id) AS user_id
           FROM points.points_entry GROUP BY order_no) p ON p.order_no = o.order_no
LEFT JOIN (SELECT order_no, SUM(cash) AS cash FROM "order".refund WHERE status = 'REFUNDED' GROUP BY order_no) f ON f.order_no = o.order_no
WHERE COALESCE(p.n, 0) <> 1 OR p.granted <> o.due OR p.users <> 1 OR p.user_id <> o.user_id
   OR p.reversed <> CASE WHEN o.status = 'REFUNDED' THEN o.due WHEN o.payable = 0 THEN 0 ELSE o.due * COALESCE(f.cash, 0) / o.payable END

-- name: points spent and locked are what the orders say.checked
SELECT COUNT(*) FROM "order".orders WHERE points_to_spend > 0

-- name: points spent and locked are what the orders say.broken
SELECT o.order_no, 'order is ' || o.status || ', wants ' || o.points_to_spend || ' points, spends ' || o.points_spent || ' / ' || COALESCE(p.spent, 0) || ', locked ' || COALESCE(p.taken, 0)
  || ' of which ' || COALESCE(p.locked, 0) || ' still are, given back ' || COALESCE(p.back, 0) || ' / ' || COALESCE(f.back, 0)
FROM "order".orders o
LEFT JOIN (SELECT order_no, -SUM(CASE kind WHEN 'POINT_SPEND' THEN points ELSE 0 END) AS spent, SUM(CASE kind WHEN 'POINT_BACK' THEN points ELSE 0 END) AS back,
             SUM(CASE kind WHEN 'POINT_LOCK' THEN locked ELSE 0 END) AS taken, SUM(locked) AS locked FROM points.points_entry GROUP BY order_no) p ON p.order_no = o.order_no
LEFT JOIN (SELECT order_no, SUM(points_back) AS back FROM "order".refund WHERE status = 'REFUNDED' GROUP BY order_no) f ON f.order_no = o.order_no
WHERE COALESCE(p.spent, 0) <> CASE WHEN o.status IN ('CREATED', 'CLOSING', 'CANCELED') THEN 0 ELSE o.points_spent END OR COALESCE(p.back, 0) <> COALESCE(f.back, 0)
   OR (o.payable_at > 0 AND COALESCE(p.taken, 0) <> o.points_to_spend) OR COALESCE(p.taken, 0) NOT IN (0, o.points_to_spend)
   OR (COALESCE(p.locked, 0) <> 0 AND o.status NOT IN ('CREATED', 'CLOSING')) OR (o.status = 'CREATED' AND o.payable_at > 0 AND COALESCE(p.locked, 0) <> o.points_to_spend)
UNION ALL
SELECT e.entry_key, 'moves points for order ' || e.order_no || ', which is ' || COALESCE(o.status, 'not there')
FROM points.points_entry e LEFT JOIN "order".orders o ON o.order_no = e.order_no
WHERE (e.order_no <> '' AND o.order_no IS NULL) OR (e.kind IN ('ORDER_POINT', 'POINT_SPEND', 'POINT_BACK', 'POINT_REVERSAL') AND COALESCE(o.status, 'CANCELED') IN ('CREATED', 'CLOSING', 'CANCELED'))
   OR (e.kind = 'GRANT') <> (e.order_no = '')
UNION ALL
SELECT k.order_no, 'the points service says locked ' || k.locked || ', spent ' || k.spent || ', given back ' || k.given_back || ', granted ' || k.granted || ', reversed ' || k.reversed || '; its rows say otherwise'
FROM points.points_order k LEFT JOIN (SELECT order_no, SUM(CASE kind WHEN 'POINT_LOCK' THEN locked ELSE 0 END) AS locked, -SUM(CASE kind WHEN 'POINT_SPEND' THEN points ELSE 0 END) AS spent,
    SUM(CASE kind WHEN 'POINT_BACK' THEN points ELSE 0 END) AS back, SUM(CASE kind WHEN 'ORDER_POINT' THEN points ELSE 0 END) AS granted,
    -SUM(CASE kind WHEN 'POINT_REVERSAL' THEN points ELSE 0 END) AS reversed FROM points.points_entry GROUP BY order_no) e ON e.order_no = k.order_no
WHERE k.locked <> COALESCE(e.locked, 0) OR k.spent <> COALESCE(e.spent, 0) OR k.given_back <> COALESCE(e.back, 0) OR k.granted <> COALESCE(e.granted, 0) OR k.reversed <> COALESCE(e.reversed, 0)

-- name: a points balance is the sum of its rows.checked
SELECT COUNT(*) FROM points.points_account

-- name: a points balance is the sum of its rows.broken
SELECT a.user_id, 'balance ' || a.balance || ', debt ' || a.debt || ', rows ' || COALESCE(e.points, 0) || '; locked ' || a.locked || ', rows ' || COALESCE(e.locked, 0)
FROM points.points_account a LEFT JOIN (SELECT user_id, SUM(points) AS points, SUM(locked) AS locked FROM points.points_entry GROUP BY user_id) e ON e.user_id = a.user_id
WHERE a.balance - a.debt <> COALESCE(e.points, 0) OR a.locked <> COALESCE(e.locked, 0) OR a.balance < 0 OR a.locked < 0 OR a.debt < 0
UNION ALL
SELECT e.user_id, 'points rows without an account' FROM points.points_entry e LEFT JOIN points.points_account a ON a.user_id = e.user_id WHERE a.user_id IS NULL

-- name: one shipment per paid order, one booking per shipment.checked
SELECT COUNT(*) FROM shipping.shipment

-- name: one shipment per paid order, one booking per shipment.broken
SELECT o.order_no, 'order is ' || o.status || ' over ' || COALESCE(l.pieces, 0) || ' pieces, its shipment is ' || COALESCE(s.state || ' over ' || s.pieces || ' pieces', 'missing')
FROM "order".orders o LEFT JOIN shipping.shipment s ON s.order_no = o.order_no
LEFT JOIN (SELECT order_no, SUM(quantity) AS pieces FROM "order".order_line GROUP BY order_no) l ON l.order_no = o.order_no
WHERE (o.status IN ('PAID','SHIPPED','COMPLETED','REFUNDING') AND (s.order_no IS NULL OR (s.state IN ('CANCELED', 'FAILED') AND o.status <> 'REFUNDING')))
   OR (o.status = 'REFUNDED' AND COALESCE(s.state, 'FAILED') NOT IN ('DISPATCHED', 'DELIVERED', 'CANCELED'))
   OR (o.status IN ('CREATED','CLOSING','CANCELED') AND s.order_no IS NOT NULL)
   OR (o.status = 'SHIPPED' AND s.state NOT IN ('DISPATCHED','DELIVERED')) OR (o.status = 'COMPLETED' AND s.state <> 'DELIVERED')
   OR (s.order_no IS NOT NULL AND (s.user_id <> o.user_id OR (s.pieces IS NOT l.pieces AND (s.pieces <> 0 OR s.state <> 'CANCELED'))))
UNION ALL
SELECT s.order_no, 'is shipped, but not there' FROM shipping.shipment s LEFT JOIN "order".orders o ON o.order_no = s.order_no WHERE o.order_no IS NULL
UNION ALL
SELECT s.order_no, 'shipment is ' || s.state || ' as ' || s.tracking_no || ' over ' || s.pieces || ', the carrier''s booking is '
  || COALESCE(b.tracking_no || ' over ' || json_extract(b.content, '$.pieces') || CASE WHEN b.canceled_at > 0 THEN ', canceled' ELSE '' END, 'missing')
FROM shipping.shipment s LEFT JOIN world.carrier_booking b ON b.booking_key = s.booking_key
WHERE (s.state IN ('DISPATCHED', 'DELIVERED') AND (b.booking_key IS NULL OR b.tracking_no <> s.tracking_no OR b.canceled_at <> 0 OR json_extract(b.content, '$.pieces') IS NOT s.pieces
       OR json_extract(b.content, '$.order_no') IS NOT s.order_no))
   OR (s.state = 'CANCELED' AND b.tracking_no <> '' AND b.canceled_at = 0)
UNION ALL
SELECT b.booking_key, 'the carrier has a booking that no shipment asked for'
FROM world.carrier_booking b LEFT JOIN shipping.shipment s ON s.booking_key = b.booking_key AND s.pieces > 0 WHERE s.order_no IS NULL AND b.tracking_no <> ''

-- name: customers were told once.checked
SELECT COUNT(*) FROM notification.notification

-- name: customers were told once.broken
SELECT d.message_key, 'order is ' || d.status || ' but its customer was not told' FROM (
  SELECT 'NOTIFY:OrderPaid:' || order_no AS message_key, order_no, user_id, status FROM paid
  UNION ALL SELECT 'NOTIFY:OrderCanceled:' || order_no, order_no, user_id, status FROM "order".orders WHERE status = 'CANCELED'
  UNION ALL SELECT 'NOTIFY:OrderShipped:' || o.order_no, o.order_no, o.user_id, o.status FROM "order".orders o JOIN change c ON c.machine = 'order' AND c.entity_id = o.order_no AND c.to_state = 'SHIPPED'
  UNION ALL SELECT 'NOTIFY:OrderRefunded:' || f.refund_no, o.order_no, o.user_id, f.status FROM "order".refund f JOIN "order".orders o ON o.order_no = f.order_no WHERE f.status = 'REFUNDED'
) d LEFT JOIN notification.notification n ON n.message_key = d.message_key AND n.user_id = d.user_id AND n.order_no = d.order_no WHERE n.message_key IS NULL
UNION ALL
SELECT n.message_key, 'was told, but the order is ' || COALESCE(o.status, 'not there')
FROM notification.notification n LEFT JOIN "order".orders o ON o.order_no = n.order_no
WHERE CASE n.type
  WHEN 'OrderCanceled' THEN o.status IS NOT 'CANCELED' OR n.message_key <> 'NOTIFY:OrderCanceled:' || n.order_no
  WHEN 'OrderPaid' THEN n.message_key <> 'NOTIFY:OrderPaid:' || n.order_no OR NOT EXISTS (SELECT 1 FROM paid p WHERE p.order_no = n.order_no)
  WHEN 'OrderShipped' THEN n.message_key <> 'NOTIFY:OrderShipped:' || n.order_no OR NOT EXISTS (SELECT 1 FROM change c WHERE c.machine = 'order' AND c.entity_id = n.order_no AND c.to_state = 'SHIPPED')
  WHEN 'OrderRefunded' THEN NOT EXISTS (SELECT 1 FROM "order".refund f WHERE f.order_no = n.order_no AND n.message_key = 'NOTIFY:OrderRefunded:' || f.refund_no AND f.status = 'REFUNDED')
  ELSE 1 END
UNION ALL
SELECT n.message_key, 'is ' || n.state || ' as ' || n.provider_id || ', the messenger has ' || COALESCE(m.message_id, 'nothing')
FROM notification.notification n LEFT JOIN world.messenger_message m ON m.message_key = n.message_key
WHERE n.state <> 'SENT' OR m.message_id IS NOT n.provider_id OR json_extract(m.content, '$.to') IS NOT n.user_id OR json_extract(m.content, '$.text') IS NOT n.body
UNION ALL
SELECT m.message_key, 'the messenger sent something that nobody asked for'
FROM world.messenger_message m LEFT JOIN notification.notification n ON n.message_key = m.message_key WHERE n.message_key IS NULL
