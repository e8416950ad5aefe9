-- The statements of the points service. All run inside the transaction of the event or request that caused them, the entry
-- and the balance in the same one.

-- name: OpenAccount :once
INSERT INTO points_account (user_id, balance, locked, debt, updated_at) VALUES (?, 0, 0, 0, ?)

-- name: FindAccount
SELECT user_id, balance, locked, debt, updated_at FROM points_account WHERE user_id = ?

-- name: Credit
-- A debt is paid first. balance is assigned before debt because MySQL lets later assignments see earlier ones.
UPDATE points_account SET
  balance = balance + CASE WHEN debt >= ? THEN 0 ELSE ? - debt END,
  debt = CASE WHEN debt >= ? THEN debt - ? ELSE 0 END,
  updated_at = ?
WHERE user_id = ? AND balance <= ?

-- name: Debit
-- What is not there, locked points apart, becomes debt. debt is assigned before balance because MySQL lets later assignments
-- see earlier ones.
UPDATE points_account SET
  debt = debt + CASE WHEN balance - locked >= ? THEN 0 ELSE ? - (balance - locked) END,
  balance = CASE WHEN balance - locked >= ? THEN balance - ? ELSE locked END,
  updated_at = ?
WHERE user_id = ? AND debt <= ?

-- name: Lock
-- Check and lock are one statement. Available is the balance less what other orders hold.
UPDATE points_account SET locked = locked + ?, updated_at = ? WHERE user_id = ? AND balance - locked >= ?

-- name: Spend
-- Of the locked points some are spent, and the rest of the lock is given up.
UPDATE points_account SET locked = locked - ?, balance = balance - ?, updated_at = ? WHERE user_id = ? AND locked >= ? AND balance >= ?

-- name: PayDebt
-- After an unlock freed points while there is a debt. The caller read the row after changing it in this transaction, so nobody
-- changed it since; the conditions are a backstop.
UPDATE points_account SET balance = balance - ?, debt = debt - ? WHERE user_id = ? AND debt >= ? AND balance - locked >= ?

-- name: AddEntry :once
-- The key is the business identity of the change; it is inserted before the balance changes so that a second one finds it.
INSERT INTO points_entry (entry_key, user_id, kind, points, locked, order_no, cause, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: FindEntry
SELECT entry_key, user_id, kind, points, locked, order_no, cause, at FROM points_entry WHERE entry_key = ?

-- name: EntriesOfUser
SELECT entry_key, user_id, kind, points, locked, order_no, cause, at FROM points_entry WHERE user_id = ? ORDER BY at DESC, entry_key LIMIT ?

-- name: AddOrder :once
INSERT INTO points_order (order_no, user_id, state, version, locked, spent, given_back, granted, reversed, reason, created_at, updated_at)
VALUES (?, ?, ?, 1, ?, 0, 0, 0, 0, ?, ?, ?)

-- name: FindOrder
SELECT order_no, user_id, state, version, locked, spent, given_back, granted, reversed FROM points_order WHERE order_no = ?

-- name: PayOrder
UPDATE points_order SET spent = ?, granted = ?, updated_at = ? WHERE order_no = ? AND state = 'PAID'

-- name: RefundOrder
-- Never more back than was spent, never more taken back than was granted. A refund leaves the state and is a change all the same: its
-- event needs the next version.
UPDATE points_order SET given_back = given_back + ?, reversed = reversed + ?, version = version + 1, updated_at = ?
WHERE order_no = ? AND version = ? AND given_back + ? <= spent AND reversed + ? <= granted
