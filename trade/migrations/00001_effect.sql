-- +goose Up
-- One row per business effect. key_digest is SHA-256 of effect_key in hexadecimal: fixed length, safe from collations.
-- reverses_digest is NULL for what is no compensation, so the unique index allows at most one compensation per effect.
CREATE TABLE effect (
  key_digest      CHAR(64)      NOT NULL PRIMARY KEY,
  effect_key      VARCHAR(255)  NOT NULL,
  order_no        VARCHAR(64)   NOT NULL,
  kind            VARCHAR(64)   NOT NULL,
  reverses        VARCHAR(255)  NOT NULL,
  reverses_digest CHAR(64),
  cause           VARCHAR(255)  NOT NULL,
  detail          VARCHAR(2000) NOT NULL,
  at              BIGINT        NOT NULL
);
CREATE UNIQUE INDEX effect_reverses ON effect (reverses_digest);
CREATE INDEX effect_order ON effect (order_no, at);

-- The story of an order reads the engine's rows by the order's number. Only the platform needs that, so the engine does not
-- pay for these.
CREATE INDEX trade_story_event ON outbox_event (aggregate_id);
CREATE INDEX trade_story_transition ON machine_transition (entity_id);
