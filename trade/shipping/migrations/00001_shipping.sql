-- +goose Up
-- One shipment per order: the order's number is the key. A CANCELED row without pieces is a tombstone: the refund came first.
CREATE TABLE shipment (
  order_no      VARCHAR(64)  NOT NULL PRIMARY KEY,
  user_id       VARCHAR(64)  NOT NULL,
  state         VARCHAR(12)  NOT NULL,
  version       BIGINT       NOT NULL,
  pieces        BIGINT       NOT NULL,
  booking_key   VARCHAR(255) NOT NULL,   -- at the carrier
  tracking_no   VARCHAR(100) NOT NULL,
  reason        VARCHAR(500) NOT NULL,
  created_at    BIGINT       NOT NULL,
  updated_at    BIGINT       NOT NULL,
  CONSTRAINT shipment_state CHECK (state IN ('BOOKING', 'DISPATCHED', 'DELIVERED', 'CANCELING', 'CANCELED', 'FAILED')),
  CONSTRAINT shipment_pieces CHECK (pieces >= 0)
);
CREATE INDEX shipment_of_state ON shipment (state, order_no);
