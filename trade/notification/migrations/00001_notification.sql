-- +goose Up
-- What customers are told, once each: the key names the occasion.
CREATE TABLE notification (
  message_key VARCHAR(255) NOT NULL PRIMARY KEY, -- NOTIFY:{type}:{order or refund number}; also the provider's idempotency key
  order_no    VARCHAR(64)  NOT NULL,
  user_id     VARCHAR(64)  NOT NULL,
  type        VARCHAR(32)  NOT NULL,
  body        VARCHAR(500) NOT NULL,
  state       VARCHAR(10)  NOT NULL,
  provider_id VARCHAR(100) NOT NULL,
  reason      VARCHAR(500) NOT NULL,
  created_at  BIGINT       NOT NULL,
  updated_at  BIGINT       NOT NULL,
  CONSTRAINT notification_state CHECK (state IN ('PENDING', 'SENT', 'FAILED'))
);
CREATE INDEX notification_order ON notification (order_no, created_at);
