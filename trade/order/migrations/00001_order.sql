-- +goose Up
-- What is sold and for how much. The price of a placed order is the one it had at that moment (order_line.unit_price).
CREATE TABLE product_price (
  sku        VARCHAR(64) NOT NULL,
  offer      VARCHAR(64) NOT NULL, -- '' is the standard offer
  currency   CHAR(3)     NOT NULL,
  unit_price BIGINT      NOT NULL CHECK (unit_price >= 0),
  updated_at BIGINT      NOT NULL,
  PRIMARY KEY (sku, offer)
);

-- due_at is when an unpaid order is closed; NULL as soon as it is not open any more, so that the sweep's index is short.
-- The four answers are 1 when positive; an order without coupon or points needs none of those.
CREATE TABLE orders (
  order_no        VARCHAR(64)  NOT NULL PRIMARY KEY,
  user_id         VARCHAR(64)  NOT NULL,
  status          VARCHAR(16)  NOT NULL,
  version         BIGINT       NOT NULL,
  currency        CHAR(3)      NOT NULL,
  goods_total     BIGINT       NOT NULL CHECK (goods_total >= 0),
  coupon_code     VARCHAR(64)  NOT NULL,
  coupon_value    BIGINT       NOT NULL CHECK (coupon_value >= 0),
  points_to_spend BIGINT       NOT NULL CHECK (points_to_spend >= 0),
  points_locked   BIGINT       NOT NULL CHECK (points_locked >= 0),
  stock_held      INTEGER      NOT NULL,
  coupon_held     INTEGER      NOT NULL,
  points_held     INTEGER      NOT NULL,
  risk_approved   INTEGER      NOT NULL,
  coupon_total    BIGINT       NOT NULL CHECK (coupon_total >= 0),
  points_spent    BIGINT       NOT NULL CHECK (points_spent >= 0),
  payable         BIGINT       NOT NULL CHECK (payable >= 0),
  payable_at      BIGINT       NOT NULL, -- 0 until everything is held and the shares are stored
  reason          VARCHAR(500) NOT NULL,
  channel         VARCHAR(64)  NOT NULL,
  transaction_id  VARCHAR(255) NOT NULL,
  client_ref      VARCHAR(200) NOT NULL,
  due_at          BIGINT,
  expires_at      BIGINT       NOT NULL,
  refund_count    BIGINT       NOT NULL,
  created_at      BIGINT       NOT NULL,
  updated_at      BIGINT       NOT NULL,
  CHECK (coupon_total + points_spent <= goods_total)
);
CREATE INDEX orders_due ON orders (due_at);
CREATE INDEX orders_user ON orders (user_id, order_no);

-- The refunded_* columns are reservations of refunds that have not failed: taken before the channel is called.
CREATE TABLE order_line (
  order_no          VARCHAR(64) NOT NULL,
  line_no           INTEGER     NOT NULL,
  sku               VARCHAR(64) NOT NULL,
  quantity          BIGINT      NOT NULL CHECK (quantity > 0),
  unit_price        BIGINT      NOT NULL CHECK (unit_price >= 0),
  amount            BIGINT      NOT NULL CHECK (amount >= 0),
  coupon_share      BIGINT      NOT NULL CHECK (coupon_share >= 0),
  points_share      BIGINT      NOT NULL CHECK (points_share >= 0),
  payable           BIGINT      NOT NULL CHECK (payable >= 0),
  refunded_quantity BIGINT      NOT NULL CHECK (refunded_quantity >= 0),
  refunded_coupon   BIGINT      NOT NULL CHECK (refunded_coupon >= 0),
  refunded_points   BIGINT      NOT NULL CHECK (refunded_points >= 0),
  refunded_cash     BIGINT      NOT NULL CHECK (refunded_cash >= 0),
  PRIMARY KEY (order_no, line_no),
  CHECK (refunded_quantity <= quantity),
  CHECK (refunded_coupon <= coupon_share),
  CHECK (refunded_points <= points_share),
  CHECK (refunded_cash <= payable)
);

-- The claim that makes a client token single use. fingerprint is SHA-256 of what the client ordered, in hexadecimal.
CREATE TABLE client_token_claim (
  token_id    CHAR(36)    NOT NULL PRIMARY KEY,
  user_id     VARCHAR(64) NOT NULL,
  order_no    VARCHAR(64) NOT NULL,
  fingerprint CHAR(64)    NOT NULL,
  claimed_at  BIGINT      NOT NULL
);
CREATE INDEX client_token_claim_age ON client_token_claim (claimed_at);

CREATE TABLE refund (
  refund_no    VARCHAR(80)  NOT NULL PRIMARY KEY,
  order_no     VARCHAR(64)  NOT NULL,
  refund_index BIGINT       NOT NULL,
  status       VARCHAR(16)  NOT NULL,
  version      BIGINT       NOT NULL,
  amount       BIGINT       NOT NULL CHECK (amount >= 0),
  coupon_total BIGINT       NOT NULL CHECK (coupon_total >= 0),
  points_back  BIGINT       NOT NULL CHECK (points_back >= 0),
  cash         BIGINT       NOT NULL CHECK (cash >= 0),
  reason       VARCHAR(500) NOT NULL,
  failure      VARCHAR(500) NOT NULL,
  channel_id   VARCHAR(255) NOT NULL,
  actor        VARCHAR(100) NOT NULL,
  created_at   BIGINT       NOT NULL,
  updated_at   BIGINT       NOT NULL
);
CREATE UNIQUE INDEX refund_order ON refund (order_no, refund_index);

CREATE TABLE refund_line (
  refund_no    VARCHAR(80) NOT NULL,
  line_no      INTEGER     NOT NULL,
  sku          VARCHAR(64) NOT NULL,
  quantity     BIGINT      NOT NULL CHECK (quantity > 0),
  amount       BIGINT      NOT NULL CHECK (amount >= 0),
  coupon_share BIGINT      NOT NULL CHECK (coupon_share >= 0),
  points_share BIGINT      NOT NULL CHECK (points_share >= 0),
  cash         BIGINT      NOT NULL CHECK (cash >= 0),
  PRIMARY KEY (refund_no, line_no)
);
