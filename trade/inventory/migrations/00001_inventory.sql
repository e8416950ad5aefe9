-- Stock of a shop: three numbers per SKU, every change a flow row, every order's hold a row.
-- +goose Up
CREATE TABLE stock (
  sku VARCHAR(64) NOT NULL PRIMARY KEY,
  on_hand BIGINT NOT NULL,
  reserved BIGINT NOT NULL,
  sold BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  CONSTRAINT stock_on_hand CHECK (on_hand >= 0),
  CONSTRAINT stock_reserved CHECK (reserved >= 0),
  CONSTRAINT stock_sold CHECK (sold >= 0),
  CONSTRAINT stock_covered CHECK (reserved <= on_hand)
);

-- Append-only. Sums by kind give the three numbers back:
-- on_hand = RECEIVE - DEDUCT + RETURN, reserved = RESERVE - RELEASE - DEDUCT, sold = DEDUCT - RETURN.
CREATE TABLE stock_flow (
  flow_key VARCHAR(255) NOT NULL PRIMARY KEY,
  sku VARCHAR(64) NOT NULL,
  kind VARCHAR(10) NOT NULL,
  quantity BIGINT NOT NULL,
  order_no VARCHAR(64) NOT NULL,
  cause VARCHAR(255) NOT NULL,
  at BIGINT NOT NULL,
  CONSTRAINT stock_flow_quantity CHECK (quantity > 0),
  CONSTRAINT stock_flow_kind CHECK (kind IN ('RECEIVE', 'RESERVE', 'RELEASE', 'DEDUCT', 'RETURN'))
);
CREATE INDEX stock_flow_sku ON stock_flow (sku, at);

-- What the service knows of an order. A RELEASED row without holds is a tombstone: the cancellation came first.
CREATE TABLE stock_order (
  order_no VARCHAR(64) NOT NULL PRIMARY KEY,
  user_id VARCHAR(64) NOT NULL,
  state VARCHAR(10) NOT NULL,
  version BIGINT NOT NULL,
  reason TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  CONSTRAINT stock_order_state CHECK (state IN ('HELD', 'REJECTED', 'RELEASED', 'DEDUCTED'))
);

CREATE TABLE stock_hold (
  order_no VARCHAR(64) NOT NULL,
  sku VARCHAR(64) NOT NULL,
  quantity BIGINT NOT NULL,
  returned BIGINT NOT NULL,
  state VARCHAR(10) NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  PRIMARY KEY (order_no, sku),
  CONSTRAINT stock_hold_quantity CHECK (quantity > 0),
  CONSTRAINT stock_hold_returned CHECK (returned >= 0 AND returned <= quantity),
  CONSTRAINT stock_hold_deducted CHECK (returned = 0 OR state = 'DEDUCTED'),
  CONSTRAINT stock_hold_state CHECK (state IN ('HELD', 'RELEASED', 'DEDUCTED'))
);

-- +goose Down
DROP TABLE stock_hold;
DROP TABLE stock_order;
DROP TABLE stock_flow;
DROP TABLE stock;
