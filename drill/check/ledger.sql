-- Equations about the ledger. Its hash chain is checked by chain.go. See money.sql for how they are written.

-- name: every journal balances and the whole ledger balances.checked
SELECT COUNT(*) FROM ledger.posting

-- name: every journal balances and the whole ledger balances.broken
-- A sale or a refund of goods that cost nothing has a journal without postings; that none is missing is the multisets' matter.
SELECT j.journal_key, 'debits ' || COALESCE(SUM(p.debit), 0) || ', credits ' || COALESCE(SUM(p.credit), 0)
FROM ledger.journal j LEFT JOIN ledger.posting p ON p.journal_key = j.journal_key
GROUP BY j.journal_key, p.currency HAVING COALESCE(SUM(p.debit), 0) <> COALESCE(SUM(p.credit), 0) OR (COUNT(p.line_no) = 0 AND j.kind NOT IN ('POINT_REVERSAL', 'ORDER_PAID', 'ORDER_REFUND'))
UNION ALL
SELECT p.journal_key, 'a posting that is not of its journal: order ' || p.order_no || ' at ' || p.at
FROM ledger.posting p LEFT JOIN ledger.journal j ON j.journal_key = p.journal_key
WHERE j.journal_key IS NULL OR j.order_no <> p.order_no OR j.at <> p.at OR p.line_no < 1

-- name: the suspense account is empty, for every order and every payment without one.checked
SELECT COUNT(*) FROM ledger.posting WHERE account = 'suspense'

-- name: the suspense account is empty, for every order and every payment without one.broken
-- Order by order: one that holds too much must not hide behind one that holds too little.
SELECT CASE p.order_no WHEN '' THEN SUBSTR(j.journal_key, INSTR(j.journal_key, ':') + 1) ELSE p.order_no END AS what, 'holds ' || (SUM(p.credit) - SUM(p.debit)) || ' ' || p.currency
FROM ledger.posting p JOIN ledger.journal j ON j.journal_key = p.journal_key WHERE p.account = 'suspense'
GROUP BY what, p.currency HAVING SUM(p.credit) <> SUM(p.debit)

-- name: money paid is orders paid is ledger postings.checked
SELECT COUNT(*) FROM payment.payment_receipt WHERE state = 'APPLIED'

-- name: money paid is orders paid is ledger postings.broken
SELECT 'all orders in ' || currency, 'applied receipts ' || SUM(receipts) || ', paid orders ' || SUM(orders) || ', posted ' || SUM(posted) FROM (
  SELECT currency, SUM(amount) AS receipts, 0 AS orders, 0 AS posted FROM payment.payment_receipt WHERE state = 'APPLIED' GROUP BY currency
  UNION ALL
  SELECT currency, 0, SUM(payable), 0 FROM paid GROUP BY currency
  UNION ALL
  SELECT p.currency, 0, 0, SUM(p.debit) FROM ledger.posting p JOIN ledger.journal j ON j.journal_key = p.journal_key
  WHERE j.kind = 'ORDER_PAID' AND p.account = 'suspense' GROUP BY p.currency
) GROUP BY currency HAVING SUM(receipts) <> SUM(orders) OR SUM(orders) <> SUM(posted)

-- name: everything that moved money or points has its journal.checked
SELECT COUNT(*) FROM ledger.journal

-- name: everything that moved money or points has its journal.broken
SELECT journal_key, CASE WHEN SUM(due) > SUM(done) THEN 'is not in the ledger' ELSE 'is in the ledger, but nothing calls for it' END FROM (
  SELECT 'RECEIPT:' || channel || ':' || transaction_id AS journal_key, order_no, 1 AS due, 0 AS done FROM payment.payment_receipt WHERE kind = 'payment.succeeded' AND class <> 'WRONG_MERCHANT'
  UNION ALL SELECT 'UNAPPLIED_REFUND:' || channel || ':' || transaction_id, order_no, 1, 0 FROM payment.payment_receipt WHERE state = 'REFUNDED'
  UNION ALL SELECT 'ORDER_PAID:' || order_no, order_no, 1, 0 FROM paid
  UNION ALL SELECT 'ORDER_POINT:' || order_no, order_no, 1, 0 FROM paid
  UNION ALL SELECT 'REFUND:' || refund_no, order_no, 1, 0 FROM payment.payment_refund WHERE state = 'REFUNDED'
  UNION ALL SELECT 'ORDER_REFUND:' || refund_no, order_no, 1, 0 FROM "order".refund WHERE status = 'REFUNDED'
  UNION ALL SELECT 'POINT_REVERSAL:' || refund_no, order_no, 1, 0 FROM "order".refund WHERE status = 'REFUNDED'
  UNION ALL SELECT journal_key, order_no, 0, 1 FROM ledger.journal WHERE kind <> 'CORRECTION'
) GROUP BY journal_key, order_no HAVING SUM(due) <> SUM(done)
UNION ALL
SELECT c.journal_key, 'corrects a journal that is not there' FROM ledger.journal c LEFT JOIN ledger.journal j ON j.journal_key = c.corrects
WHERE (c.kind = 'CORRECTION' OR c.corrects <> '') AND (j.journal_key IS NULL OR c.kind <> 'CORRECTION' OR c.journal_key <> 'CORRECTION:' || c.corrects)

-- name: every posting is what the services say, as multisets.checked
SELECT COUNT(*) FROM ledger.posting

-- name: every posting is what the services say, as multisets.broken
-- What is due is computed from the services' own rows; debits are positive. A correction turns its journal around.
SELECT journal_key || ' ' || account, 'due ' || SUM(due) || ', posted ' || SUM(posted) || ' ' || currency FROM (
  SELECT 'RECEIPT:' || channel || ':' || transaction_id AS journal_key, 'channel:' || channel AS account, currency, amount AS due, 0 AS posted, 0 AS n, 1 AS m FROM payment.payment_receipt WHERE kind = 'payment.succeeded' AND class <> 'WRONG_MERCHANT'
  UNION ALL SELECT 'RECEIPT:' || channel || ':' || transaction_id, 'suspense', currency, -amount, 0, 0, 1 FROM payment.payment_receipt WHERE kind = 'payment.succeeded' AND class <> 'WRONG_MERCHANT'
  UNION ALL SELECT 'UNAPPLIED_REFUND:' || channel || ':' || transaction_id, 'channel:' || channel, currency, -amount, 0, 0, 1 FROM payment.payment_receipt WHERE state = 'REFUNDED'
  UNION ALL SELECT 'UNAPPLIED_REFUND:' || channel || ':' || transaction_id, 'suspense', currency, amount, 0, 0, 1 FROM payment.payment_receipt WHERE state = 'REFUNDED'
  UNION ALL SELECT 'ORDER_PAID:' || order_no, 'suspense', currency, payable, 0, 0, payable > 0 FROM paid
  UNION ALL SELECT 'ORDER_PAID:' || order_no, 'coupon_expense', currency, coupon_total, 0, 0, coupon_total > 0 FROM paid
  UNION ALL SELECT 'ORDER_PAID:' || order_no, 'points_liability', currency, points_spent, 0, 0, points_spent > 0 FROM paid
  UNION ALL SELECT 'ORDER_PAID:' || order_no, 'revenue', currency, -goods_total, 0, 0, goods_total > 0 FROM paid
  UNION ALL SELECT 'ORDER_POINT:' || o.order_no, 'points_expense', o.currency, e.points, 0, 0, 1 FROM paid o JOIN points.points_entry e ON e.order_no = o.order_no AND e.kind = 'ORDER_POINT'
  UNION ALL SELECT 'ORDER_POINT:' || o.order_no, 'points_liability', o.currency, -e.points, 0, 0, 1 FROM paid o JOIN points.points_entry e ON e.order_no = o.order_no AND e.kind = 'ORDER_POINT'
  UNION ALL SELECT 'REFUND:' || refund_no, 'suspense', currency, amount, 0, 0, 1 FROM payment.payment_refund WHERE state = 'REFUNDED'
  UNION ALL SELECT 'REFUND:' || refund_no, 'channel:' || channel, currency, -amount, 0, 0, 1 FROM payment.payment_refund WHERE state = 'REFUNDED'
  UNION ALL SELECT 'ORDER_REFUND:' || f.refund_no, 'revenue', o.currency, f.amount, 0, 0, f.amount > 0 FROM "order".refund f JOIN paid o ON o.order_no = f.order_no WHERE f.status = 'REFUNDED'
  UNION ALL SELECT 'ORDER_REFUND:' || f.refund_no, 'suspense', o.currency, -f.cash, 0, 0, f.cash > 0 FROM "order".refund f JOIN paid o ON o.order_no = f.order_no WHERE f.status = 'REFUNDED'
  UNION ALL SELECT 'ORDER_REFUND:' || f.refund_no, 'coupon_expense', o.currency, -f.coupon_total, 0, 0, f.coupon_total > 0 FROM "order".refund f JOIN paid o ON o.order_no = f.order_no WHERE f.status = 'REFUNDED'
  UNION ALL SELECT 'ORDER_REFUND:' || f.refund_no, 'points_liability', o.currency, -f.points_back, 0, 0, f.points_back > 0 FROM "order".refund f JOIN paid o ON o.order_no = f.order_no WHERE f.status = 'REFUNDED'
  UNION ALL SELECT e.entry_key, 'points_liability', o.currency, -e.points, 0, 0, e.points < 0 FROM points.points_entry e JOIN paid o ON o.order_no = e.order_no WHERE e.kind = 'POINT_REVERSAL'
  UNION ALL SELECT e.entry_key, 'points_expense', o.currency, e.points, 0, 0, e.points < 0 FROM points.points_entry e JOIN paid o ON o.order_no = e.order_no WHERE e.kind = 'POINT_REVERSAL'
  UNION ALL SELECT c.journal_key, p.account, p.currency, p.credit - p.debit, 0, 0, 1 FROM ledger.journal c JOIN ledger.posting p ON p.journal_key = c.corrects WHERE c.kind = 'CORRECTION'
  UNION ALL SELECT journal_key, account, currency, 0, debit - credit, 1, 0 FROM ledger.posting
) GROUP BY journal_key, account, currency HAVING SUM(due) <> SUM(posted) OR SUM(n) <> SUM(m)

-- name: the channel account is receipts less refunds.checked
SELECT COUNT(*) FROM ledger.posting WHERE account LIKE 'channel:%'

-- name: the channel account is receipts less refunds.broken
-- Against the channel's own books: what it took for us and did not give back.
SELECT account || ' ' || currency, 'ledger ' || SUM(ledger) || ', the channel says ' || SUM(channel) FROM (
  SELECT account, currency, SUM(debit) - SUM(credit) AS ledger, 0 AS channel FROM ledger.posting WHERE account LIKE 'channel:%' GROUP BY account, currency
  UNION ALL
  SELECT 'channel:' || r.channel, r.currency, 0, SUM(p.amount - p.refunded) FROM payment.payment_receipt r JOIN world.channel_payment p ON p.transaction_id = r.transaction_id
  WHERE r.kind = 'payment.succeeded' AND r.class <> 'WRONG_MERCHANT' GROUP BY r.channel, r.currency
) GROUP BY account, currency HAVING SUM(ledger) <> SUM(channel)
