-- +goose Up
-- The state of the simulated outside world. It is kept so that a restarted platform meets the same world again.
CREATE TABLE channel_trade (
  trade_no       VARCHAR(100) NOT NULL PRIMARY KEY, -- the merchant's number
  merchant       VARCHAR(100) NOT NULL,
  state          VARCHAR(10)  NOT NULL,
  transaction_id VARCHAR(100) NOT NULL,             -- of the first payment; empty while CLOSED without one
  at             BIGINT       NOT NULL,
  CONSTRAINT channel_trade_state CHECK (state IN ('PAID', 'CLOSED'))
);

-- A trade has one payment; a drill may force another one.
CREATE TABLE channel_payment (
  transaction_id VARCHAR(100) NOT NULL PRIMARY KEY,
  trade_no       VARCHAR(100) NOT NULL,
  merchant       VARCHAR(100) NOT NULL,
  amount         BIGINT       NOT NULL,
  currency       VARCHAR(3)   NOT NULL,
  refunded       BIGINT       NOT NULL,
  at             BIGINT       NOT NULL,
  CONSTRAINT channel_payment_amount CHECK (amount > 0),
  CONSTRAINT channel_payment_refunded CHECK (refunded >= 0),
  CONSTRAINT channel_payment_limit CHECK (refunded <= amount)
);

CREATE TABLE channel_refund (
  refund_no      VARCHAR(255) NOT NULL PRIMARY KEY, -- the merchant's number, the idempotency key
  refund_id      VARCHAR(100) NOT NULL,
  transaction_id VARCHAR(100) NOT NULL,
  amount         BIGINT       NOT NULL,
  currency       VARCHAR(3)   NOT NULL,
  repeats        BIGINT       NOT NULL,             -- how often the same request came again
  at             BIGINT       NOT NULL,
  CONSTRAINT channel_refund_amount CHECK (amount > 0)
);

-- A row is to be delivered until it is acknowledged. Copies of one notice share its id, as retries do.
CREATE TABLE channel_notice (
  notice_id VARCHAR(100) NOT NULL,
  copy_no   BIGINT       NOT NULL,
  trade_no  VARCHAR(100) NOT NULL,
  body      TEXT         NOT NULL,
  attempts  BIGINT       NOT NULL,
  next_at   BIGINT       NOT NULL,
  acked_at  BIGINT       NOT NULL,                  -- 0 while it is pending
  answer    VARCHAR(200) NOT NULL,                  -- to the last attempt
  PRIMARY KEY (notice_id, copy_no)
);
CREATE INDEX channel_notice_due ON channel_notice (acked_at, next_at);

CREATE TABLE carrier_booking (
  booking_key VARCHAR(255) NOT NULL PRIMARY KEY,
  tracking_no VARCHAR(100) NOT NULL,                -- empty for a cancellation that came before its booking
  content     TEXT         NOT NULL,
  booked_at   BIGINT       NOT NULL,
  canceled_at BIGINT       NOT NULL,
  repeats     BIGINT       NOT NULL
);

CREATE TABLE messenger_message (
  message_key VARCHAR(255) NOT NULL PRIMARY KEY,
  message_id  VARCHAR(100) NOT NULL,
  content     TEXT         NOT NULL,
  repeats     BIGINT       NOT NULL,
  at          BIGINT       NOT NULL
);

-- How often which fault was made, for the drill's report.
CREATE TABLE fault_count (
  name VARCHAR(64) NOT NULL PRIMARY KEY,
  n    BIGINT      NOT NULL
);
