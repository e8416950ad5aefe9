-- name: DenyUser :once
INSERT INTO denied_user (user_id, reason, denied_at) VALUES (?, ?, ?)

-- name: UpdateDenied
UPDATE denied_user SET reason = ?, denied_at = ? WHERE user_id = ?

-- name: AllowUser
DELETE FROM denied_user WHERE user_id = ?

-- name: FindDenied
SELECT reason FROM denied_user WHERE user_id = ?

-- name: AddUser :once
INSERT INTO risk_user (user_id, decided) VALUES (?, 0)

-- name: LockUser
-- Takes the user's row until the commit: the count below then includes every decision before this one.
UPDATE risk_user SET decided = decided + 1 WHERE user_id = ?

-- name: CountApproved
SELECT COUNT(*) FROM risk_decision WHERE user_id = ? AND decided_at > ? AND approved = 1

-- name: InsertDecision :once
INSERT INTO risk_decision (order_no, user_id, approved, rule_name, reason, amount, currency, decided_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: FindDecision
SELECT order_no, user_id, approved, rule_name, reason, amount, currency, decided_at FROM risk_decision WHERE order_no = ?
