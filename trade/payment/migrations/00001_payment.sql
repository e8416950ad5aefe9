-- +goose Up
-- What is to be paid for an order, and what was. A CLOSED row without a payable is a tombstone: the closing came first.
CREATE TABLE payment_order (
  order_no         VARCHAR(64)  NOT NULL PRIMARY KEY,
  user_id          VARCHAR(64)  NOT NULL,
  currency         VARCHAR(3)   NOT NULL,
  payable          BIGINT       NOT NULL,
  state            VARCHAR(10)  NOT NULL,
  version          BIGINT       NOT NULL,
  expires_at       BIGINT       NOT NULL,
  intents          BIGINT       NOT NULL,            -- how many were opened
  paid_amount      BIGINT       NOT NULL,
  paid_channel     VARCHAR(32)  NOT NULL,
  paid_transaction VARCHAR(100) NOT NULL,
  refund_reserved  BIGINT       NOT NULL,            -- refunds that were approved and are not back yet
  refunded         BIGINT       NOT NULL,            -- refunds that are back
  opened_at        BIGINT       NOT NULL,
  updated_at       BIGINT       NOT NULL,
  CONSTRAINT payment_order_state CHECK (state IN ('OPEN', 'CLOSING', 'CLOSED', 'PAID')),
  CONSTRAINT payment_order_payable CHECK (payable >= 0),
  CONSTRAINT payment_order_paid CHECK (paid_amount >= 0),
  CONSTRAINT payment_order_reserved CHECK (refund_reserved >= 0),
  CONSTRAINT payment_order_refunded CHECK (refunded >= 0),
  CONSTRAINT payment_order_limit CHECK (refund_reserved + refunded <= paid_amount)
);

-- One attempt of a buyer to pay, with its own number at the channel.
CREATE TABLE payment_intent (
  trade_no   VARCHAR(100) NOT NULL PRIMARY KEY,      -- {order_no}-{seq}
  order_no   VARCHAR(64)  NOT NULL,
  seq        BIGINT       NOT NULL,
  channel    VARCHAR(32)  NOT NULL,
  state      VARCHAR(10)  NOT NULL,
  version    BIGINT       NOT NULL,
  created_at BIGINT       NOT NULL,
  updated_at BIGINT       NOT NULL,
  CONSTRAINT payment_intent_state CHECK (state IN ('OPEN', 'CLOSED', 'PAID'))
);
CREATE UNIQUE INDEX payment_intent_order ON payment_intent (order_no, seq);

-- Every verified notice, whatever it means. kind belongs to the key because a failure and a success may bear one
-- transaction's number, and the failure must not hide the success. receipt_digest is SHA-256 of "{channel}:{transaction} {kind}" in
-- hexadecimal: the channel's numbers are compared as bytes, whatever a database's collation thinks.
CREATE TABLE payment_receipt (
  receipt_digest    CHAR(64)     NOT NULL PRIMARY KEY,
  channel           VARCHAR(32)  NOT NULL,
  transaction_id    VARCHAR(100) NOT NULL,
  kind              VARCHAR(64)  NOT NULL,           -- the notice's type, payment.succeeded for money
  trade_no          VARCHAR(100) NOT NULL,
  order_no          VARCHAR(64)  NOT NULL,           -- empty when the trade is unknown
  user_id           VARCHAR(64)  NOT NULL,
  merchant          VARCHAR(100) NOT NULL,
  amount            BIGINT       NOT NULL,
  currency          VARCHAR(3)   NOT NULL,
  class             VARCHAR(20)  NOT NULL,
  state             VARCHAR(16)  NOT NULL,
  source            VARCHAR(10)  NOT NULL,           -- notice, or query: fetched from the channel while closing
  notice_id         VARCHAR(255) NOT NULL,
  body              TEXT         NOT NULL,           -- the received bytes, unchanged
  deliveries        BIGINT       NOT NULL,           -- how often it was notified, repeats included
  conflicts         BIGINT       NOT NULL,           -- repeats that said something else
  refund_attempt    BIGINT       NOT NULL,
  channel_refund_id VARCHAR(100) NOT NULL,
  reason            VARCHAR(500) NOT NULL,
  received_at       BIGINT       NOT NULL,
  updated_at        BIGINT       NOT NULL,
  CONSTRAINT payment_receipt_amount CHECK (amount > 0),
  CONSTRAINT payment_receipt_class CHECK (class IN ('APPLY', 'LATE', 'SECOND', 'WRONG_AMOUNT', 'UNKNOWN_ORDER', 'WRONG_MERCHANT', 'IGNORED')),
  CONSTRAINT payment_receipt_state CHECK (state IN ('RECORDED', 'GRACE', 'APPLIED', 'REFUNDING', 'REFUNDED', 'REFUND_FAILED', 'HELD', 'IGNORED'))
);
CREATE INDEX payment_receipt_order ON payment_receipt (order_no);
CREATE INDEX payment_receipt_class ON payment_receipt (class, received_at);
CREATE INDEX payment_receipt_conflicts ON payment_receipt (conflicts);

-- A refund that the order service approved.
CREATE TABLE payment_refund (
  refund_no         VARCHAR(100) NOT NULL PRIMARY KEY,
  order_no          VARCHAR(64)  NOT NULL,
  channel           VARCHAR(32)  NOT NULL,
  transaction_id    VARCHAR(100) NOT NULL,
  amount            BIGINT       NOT NULL,
  currency          VARCHAR(3)   NOT NULL,
  state             VARCHAR(10)  NOT NULL,
  version           BIGINT       NOT NULL,
  attempt           BIGINT       NOT NULL,           -- each attempt has a key of its own at the channel
  channel_refund_id VARCHAR(100) NOT NULL,
  reason            VARCHAR(500) NOT NULL,
  created_at        BIGINT       NOT NULL,
  updated_at        BIGINT       NOT NULL,
  CONSTRAINT payment_refund_amount CHECK (amount > 0),
  CONSTRAINT payment_refund_state CHECK (state IN ('RESERVED', 'REFUNDED', 'FAILED'))
);
CREATE INDEX payment_refund_order ON payment_refund (order_no);
CREATE INDEX payment_refund_state ON payment_refund (state, updated_at);
