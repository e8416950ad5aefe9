-- Loyalty points: a balance per customer, and a row for every change of it.
-- +goose Up
CREATE TABLE points_account (
  user_id VARCHAR(64) NOT NULL PRIMARY KEY,
  balance BIGINT NOT NULL,
  locked BIGINT NOT NULL,
  debt BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  CONSTRAINT points_account_balance CHECK (balance >= 0),
  CONSTRAINT points_account_locked CHECK (locked >= 0 AND locked <= balance),
  CONSTRAINT points_account_debt CHECK (debt >= 0)
);

-- Append-only. Sum of points = balance - debt; sum of locked = locked.
CREATE TABLE points_entry (
  entry_key VARCHAR(255) NOT NULL PRIMARY KEY,
  user_id VARCHAR(64) NOT NULL,
  kind VARCHAR(20) NOT NULL,
  points BIGINT NOT NULL,
  locked BIGINT NOT NULL,
  order_no VARCHAR(64) NOT NULL,
  cause VARCHAR(255) NOT NULL,
  at BIGINT NOT NULL,
  CONSTRAINT points_entry_kind CHECK (kind IN ('GRANT', 'ORDER_POINT', 'POINT_LOCK', 'POINT_SPEND', 'POINT_UNLOCK', 'POINT_BACK', 'POINT_REVERSAL'))
);
CREATE INDEX points_entry_user ON points_entry (user_id, at);

-- What the service knows of an order. A RELEASED row with locked 0 and no entries is a tombstone: the cancellation came first.
CREATE TABLE points_order (
  order_no VARCHAR(64) NOT NULL PRIMARY KEY,
  user_id VARCHAR(64) NOT NULL,
  state VARCHAR(10) NOT NULL,
  version BIGINT NOT NULL,
  locked BIGINT NOT NULL,
  spent BIGINT NOT NULL,
  given_back BIGINT NOT NULL,
  granted BIGINT NOT NULL,
  reversed BIGINT NOT NULL,
  reason TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  CONSTRAINT points_order_state CHECK (state IN ('LOCKED', 'REJECTED', 'RELEASED', 'PAID')),
  CONSTRAINT points_order_spent CHECK (locked >= 0 AND spent >= 0 AND spent <= locked),
  CONSTRAINT points_order_given_back CHECK (given_back >= 0 AND given_back <= spent),
  CONSTRAINT points_order_reversed CHECK (reversed >= 0 AND reversed <= granted)
);

-- +goose Down
DROP TABLE points_order;
DROP TABLE points_entry;
DROP TABLE points_account;
