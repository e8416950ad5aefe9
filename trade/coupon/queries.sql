-- The statements of the coupon service. All run inside the transaction of the event or request that caused them.

-- name: AddCoupon :once
INSERT INTO coupon (code, face_value, currency, minimum_spend, total_limit, per_user_limit, valid_from, valid_until, locked, redeemed,
  created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, 0, ?)

-- name: FindCoupon
SELECT code, face_value, currency, minimum_spend, total_limit, per_user_limit, valid_from, valid_until, locked, redeemed, created_at
FROM coupon WHERE code = ?

-- name: Lock
-- Reservations are counted, not finished orders: the limit is reached when it is promised away.
UPDATE coupon SET locked = locked + 1 WHERE code = ? AND locked + redeemed < total_limit

-- name: Redeem
UPDATE coupon SET locked = locked - 1, redeemed = redeemed + 1 WHERE code = ? AND locked > 0

-- name: Release
UPDATE coupon SET locked = locked - 1 WHERE code = ? AND locked > 0

-- name: GiveBack
UPDATE coupon SET redeemed = redeemed - 1 WHERE code = ? AND redeemed > 0

-- name: OpenUser :once
INSERT INTO coupon_user (code, user_id, uses, per_user_limit) VALUES (?, ?, 0, ?)

-- name: LockUser
-- Before Lock: the row of one customer is quiet, the coupon's own row is the one that many want, and is then held for a shorter time.
UPDATE coupon_user SET uses = uses + 1 WHERE code = ? AND user_id = ? AND uses < per_user_limit

-- name: ReleaseUser
UPDATE coupon_user SET uses = uses - 1 WHERE code = ? AND user_id = ? AND uses > 0

-- name: AddUse :once
INSERT INTO coupon_use (use_key, code, biz_type, biz_id, user_id, amount, state, version, reason, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?)

-- name: FindUse
SELECT use_key, code, biz_id, user_id, amount, state, version FROM coupon_use WHERE use_key = ?
