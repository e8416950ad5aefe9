-- Coupons with limits that count reservations, and one use row per order that named a coupon.
-- +goose Up
CREATE TABLE coupon (
  code VARCHAR(64) NOT NULL PRIMARY KEY,
  face_value BIGINT NOT NULL,
  currency VARCHAR(3) NOT NULL,
  minimum_spend BIGINT NOT NULL,
  total_limit BIGINT NOT NULL,
  per_user_limit BIGINT NOT NULL,
  valid_from BIGINT NOT NULL,
  valid_until BIGINT NOT NULL,
  locked BIGINT NOT NULL,
  redeemed BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  CONSTRAINT coupon_value CHECK (face_value > 0 AND minimum_spend >= 0),
  CONSTRAINT coupon_limits CHECK (total_limit > 0 AND per_user_limit > 0),
  CONSTRAINT coupon_window CHECK (valid_until > valid_from),
  CONSTRAINT coupon_counters CHECK (locked >= 0 AND redeemed >= 0),
  CONSTRAINT coupon_within_limit CHECK (locked + redeemed <= total_limit)
);

-- How many locked or redeemed uses one customer has; the limit is copied so that a CHECK can hold it.
CREATE TABLE coupon_user (
  code VARCHAR(64) NOT NULL,
  user_id VARCHAR(64) NOT NULL,
  uses BIGINT NOT NULL,
  per_user_limit BIGINT NOT NULL,
  PRIMARY KEY (code, user_id),
  CONSTRAINT coupon_user_within_limit CHECK (uses >= 0 AND uses <= per_user_limit)
);

-- use_key is {biz_id}-{biz_type}-{user}: one business object of one customer uses one coupon. A RELEASED row of amount 0 is a
-- tombstone: the cancellation came before the lock.
CREATE TABLE coupon_use (
  use_key VARCHAR(255) NOT NULL PRIMARY KEY,
  code VARCHAR(64) NOT NULL,
  biz_type VARCHAR(20) NOT NULL,
  biz_id VARCHAR(64) NOT NULL,
  user_id VARCHAR(64) NOT NULL,
  amount BIGINT NOT NULL,
  state VARCHAR(10) NOT NULL,
  version BIGINT NOT NULL,
  reason TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  UNIQUE (code, biz_type, biz_id, user_id),
  CONSTRAINT coupon_use_amount CHECK (amount >= 0),
  CONSTRAINT coupon_use_state CHECK (state IN ('LOCKED', 'REJECTED', 'REDEEMED', 'RELEASED', 'RETURNED'))
);

-- +goose Down
DROP TABLE coupon_use;
DROP TABLE coupon_user;
DROP TABLE coupon;
