-- +goose Up
CREATE TABLE denied_user (
  user_id   VARCHAR(64)  NOT NULL PRIMARY KEY,
  reason    VARCHAR(200) NOT NULL,
  denied_at BIGINT       NOT NULL
);

-- One row per user who ordered; deciding takes it, so that two orders of one user at one moment are counted one after the other.
CREATE TABLE risk_user (
  user_id VARCHAR(64) NOT NULL PRIMARY KEY,
  decided BIGINT      NOT NULL
);

-- Decisions are kept with their reason: they are what the shop can show when it is asked why.
CREATE TABLE risk_decision (
  order_no   VARCHAR(64)  NOT NULL PRIMARY KEY,
  user_id    VARCHAR(64)  NOT NULL,
  approved   INTEGER      NOT NULL,
  rule_name  VARCHAR(32)  NOT NULL,
  reason     VARCHAR(300) NOT NULL,
  amount     BIGINT       NOT NULL CHECK (amount >= 0),
  currency   CHAR(3)      NOT NULL,
  decided_at BIGINT       NOT NULL
);
CREATE INDEX risk_decision_user ON risk_decision (user_id, decided_at);
