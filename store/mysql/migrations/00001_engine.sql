-- The engine's own tables. Names and columns of outbox_event are a public contract: a program in any language that
-- inserts a row into it, in its own transaction, has written an event. Times are microseconds since 1970 UTC, 0 is none.
-- key_digest = UNHEX(SHA2(event_key, 256)), aggregate_digest = UNHEX(SHA2(CONCAT(aggregate_type, '/', aggregate_id), 256)),
-- lane = first byte of aggregate_digest modulo 64, texts in utf8mb4.
--
-- Every table gets the server's binary collation without padding when this file is applied (see migrate.go), whatever the
-- database's default: texts are equal when their bytes are. Digests are VARBINARY, wider than they may be: a server that is not
-- strict cuts what is too long, and a CHECK must still see that it was wrong. MySQL commits at each statement that changes
-- the schema; so each of these can be run again, and a migration that was interrupted is repeated.

-- +goose Up

-- Insert-only. Wide columns stand last.
CREATE TABLE IF NOT EXISTS outbox_event (
    id                BIGINT        NOT NULL AUTO_INCREMENT PRIMARY KEY,
    created_at        BIGINT        NOT NULL,
    deliver_at        BIGINT        NOT NULL DEFAULT 0,
    lane              BIGINT        NOT NULL CHECK (lane BETWEEN 0 AND 63),
    aggregate_version BIGINT        NOT NULL DEFAULT 0 CHECK (aggregate_version >= 0),
    max_attempts      BIGINT        NOT NULL DEFAULT 0 CHECK (max_attempts >= 0),
    key_digest        VARBINARY(64) NOT NULL CHECK (LENGTH(key_digest) = 32),
    aggregate_digest  VARBINARY(64) NOT NULL CHECK (LENGTH(aggregate_digest) = 32),
    topic             VARCHAR(150)  NOT NULL CHECK (LENGTH(topic) BETWEEN 1 AND 100),
    type              VARCHAR(150)  NOT NULL CHECK (LENGTH(type) BETWEEN 1 AND 100),
    aggregate_type    VARCHAR(150)  NOT NULL CHECK (LENGTH(aggregate_type) BETWEEN 1 AND 100),
    aggregate_id      VARCHAR(300)  NOT NULL CHECK (LENGTH(aggregate_id) BETWEEN 1 AND 255),
    message_id        VARCHAR(300)  NOT NULL CHECK (LENGTH(message_id) BETWEEN 1 AND 255),
    event_key         VARCHAR(300)  NOT NULL CHECK (LENGTH(event_key) BETWEEN 1 AND 255),
    headers           MEDIUMTEXT    NOT NULL DEFAULT ('{}'),
    payload           LONGBLOB      NOT NULL,
    UNIQUE KEY outbox_event_key (key_digest),
    KEY outbox_event_deliver (deliver_at)
);

-- Presence means pending. A claim reads the second index only: the rows of a lane, in order.
CREATE TABLE IF NOT EXISTS outbox_pending (
    seq      BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    lane     BIGINT NOT NULL,
    event_id BIGINT NOT NULL,
    KEY outbox_pending_lane (lane, seq, event_id)
);

CREATE TABLE IF NOT EXISTS outbox_delayed (
    event_id   BIGINT NOT NULL PRIMARY KEY,
    lane       BIGINT NOT NULL,
    deliver_at BIGINT NOT NULL,
    KEY outbox_delayed_due (lane, deliver_at, event_id)
);

-- An aggregate with a row here is blocked: its events are not sent from their lane but queue in outbox_waiting.
-- held = 1: until a person has redriven or discarded its dead event.
CREATE TABLE IF NOT EXISTS outbox_blocked (
    aggregate_digest VARBINARY(64) NOT NULL PRIMARY KEY,
    lane             BIGINT        NOT NULL,
    aggregate_type   VARCHAR(150)  NOT NULL,
    aggregate_id     VARCHAR(300)  NOT NULL,
    attempts         BIGINT        NOT NULL DEFAULT 0,
    next_attempt_at  BIGINT        NOT NULL,
    held             BIGINT        NOT NULL DEFAULT 0,
    last_error       TEXT          NOT NULL DEFAULT (''),
    blocked_at       BIGINT        NOT NULL,
    KEY outbox_blocked_due (lane, held, next_attempt_at)
);

-- seq is the one that the event had in outbox_pending, so that order survives parking and redriving. The index has all of a row:
-- MySQL reads ahead in a queue that is long, whatever the LIMIT, and would look up each of those rows in the table.
CREATE TABLE IF NOT EXISTS outbox_waiting (
    seq              BIGINT        NOT NULL PRIMARY KEY,
    event_id         BIGINT        NOT NULL,
    attempts         BIGINT        NOT NULL DEFAULT 0,
    aggregate_digest VARBINARY(64) NOT NULL,
    KEY outbox_waiting_queue (aggregate_digest, seq, event_id, attempts)
);

CREATE TABLE IF NOT EXISTS outbox_dead (
    event_id         BIGINT        NOT NULL PRIMARY KEY,
    seq              BIGINT        NOT NULL,
    hold             BIGINT        NOT NULL,
    attempts         BIGINT        NOT NULL,
    died_at          BIGINT        NOT NULL,
    aggregate_digest VARBINARY(64) NOT NULL,
    place            TEXT          NOT NULL,
    error            TEXT          NOT NULL,
    KEY outbox_dead_aggregate (aggregate_digest, seq)
);

-- Dead events that a person gave up: they will never be sent. Kept on record until their event is purged.
CREATE TABLE IF NOT EXISTS outbox_discarded (
    event_id     BIGINT NOT NULL PRIMARY KEY,
    attempts     BIGINT NOT NULL,
    died_at      BIGINT NOT NULL,
    place        TEXT   NOT NULL,
    error        TEXT   NOT NULL,
    discarded_at BIGINT NOT NULL,
    discarded_by TEXT   NOT NULL,
    reason       TEXT   NOT NULL
);

-- It is not run for an INSERT that found its key and did nothing.
DROP TRIGGER IF EXISTS outbox_event_pending;

-- +goose StatementBegin
CREATE TRIGGER outbox_event_pending AFTER INSERT ON outbox_event FOR EACH ROW
BEGIN
    IF NEW.deliver_at > 0 THEN
        INSERT INTO outbox_delayed (event_id, lane, deliver_at) VALUES (NEW.id, NEW.lane, NEW.deliver_at);
    ELSE
        INSERT INTO outbox_pending (lane, event_id) VALUES (NEW.lane, NEW.id);
    END IF;
END;
-- +goose StatementEnd

-- token grows at each acquisition and survives a release.
CREATE TABLE IF NOT EXISTS outbox_lane (
    lane       BIGINT       NOT NULL PRIMARY KEY,
    owner      VARCHAR(255) NOT NULL DEFAULT '',
    token      BIGINT       NOT NULL DEFAULT 0,
    expires_at BIGINT       NOT NULL DEFAULT 0
);
INSERT INTO outbox_lane (lane)
WITH RECURSIVE l (lane) AS (SELECT 0 UNION ALL SELECT lane + 1 FROM l WHERE lane < 63) SELECT lane FROM l
ON DUPLICATE KEY UPDATE outbox_lane.lane = outbox_lane.lane;

CREATE TABLE IF NOT EXISTS outbox_relay (
    owner      VARCHAR(255) NOT NULL PRIMARY KEY,
    expires_at BIGINT       NOT NULL
);

-- id grows with time, so that old marks are found without an index on their time.
CREATE TABLE IF NOT EXISTS inbox_mark (
    id             BIGINT        NOT NULL AUTO_INCREMENT PRIMARY KEY,
    marked_at      BIGINT        NOT NULL,
    consumer       VARCHAR(255)  NOT NULL,
    key_digest     VARBINARY(64) NOT NULL CHECK (LENGTH(key_digest) = 32),
    payload_digest VARBINARY(64) NOT NULL,
    UNIQUE KEY inbox_mark_key (consumer, key_digest)
);

CREATE TABLE IF NOT EXISTS inbox_version (
    consumer         VARCHAR(255)  NOT NULL,
    aggregate_digest VARBINARY(64) NOT NULL,
    version          BIGINT        NOT NULL,
    PRIMARY KEY (consumer, aggregate_digest)
);

CREATE TABLE IF NOT EXISTS inbox_blocked (
    consumer         VARCHAR(255)  NOT NULL,
    aggregate_digest VARBINARY(64) NOT NULL,
    aggregate_type   VARCHAR(255)  NOT NULL,
    aggregate_id     VARCHAR(255)  NOT NULL,
    next_attempt_at  BIGINT        NOT NULL,
    held             BIGINT        NOT NULL DEFAULT 0,
    blocked_at       BIGINT        NOT NULL,
    PRIMARY KEY (consumer, aggregate_digest),
    KEY inbox_blocked_due (consumer, held, next_attempt_at)
);

-- position is the order within an aggregate's queue: the row's own id, which is above all that were ever given, or one below
-- the head's. A message is known by its key, aggregate and payload: until it is marked nobody knows whether two with one key are
-- the same.
CREATE TABLE IF NOT EXISTS inbox_waiting (
    id                BIGINT        NOT NULL AUTO_INCREMENT PRIMARY KEY,
    consumer          VARCHAR(255)  NOT NULL,
    key_digest        VARBINARY(64) NOT NULL,
    aggregate_digest  VARBINARY(64) NOT NULL,
    position          BIGINT        NOT NULL,
    attempts          BIGINT        NOT NULL DEFAULT 0,
    last_error        TEXT          NOT NULL DEFAULT (''),
    enqueued_at       BIGINT        NOT NULL,
    created_at        BIGINT        NOT NULL,
    aggregate_version BIGINT        NOT NULL,
    max_attempts      BIGINT        NOT NULL DEFAULT 0,
    topic             MEDIUMTEXT    NOT NULL,
    type              MEDIUMTEXT    NOT NULL,
    aggregate_type    MEDIUMTEXT    NOT NULL,
    aggregate_id      MEDIUMTEXT    NOT NULL,
    message_id        MEDIUMTEXT    NOT NULL,
    event_key         MEDIUMTEXT    NOT NULL,
    headers           MEDIUMTEXT    NOT NULL,
    payload           LONGBLOB      NOT NULL,
    payload_digest    VARBINARY(64) NOT NULL DEFAULT '',
    UNIQUE KEY inbox_waiting_message (consumer, key_digest, aggregate_digest, payload_digest),
    KEY inbox_waiting_queue (consumer, aggregate_digest, position, id)
);

-- state is OPEN, REDRIVEN or DISCARDED. The texts of a message that is no valid event have any length.
CREATE TABLE IF NOT EXISTS inbox_dead (
    seq               BIGINT        NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id                VARCHAR(64)   NOT NULL,
    consumer          VARCHAR(255)  NOT NULL,
    state             VARCHAR(16)   NOT NULL DEFAULT 'OPEN' CHECK (state IN ('OPEN', 'REDRIVEN', 'DISCARDED')),
    hold              BIGINT        NOT NULL,
    key_digest        VARBINARY(64) NOT NULL,
    aggregate_digest  VARBINARY(64) NOT NULL,
    position          BIGINT        NOT NULL,
    attempts          BIGINT        NOT NULL,
    died_at           BIGINT        NOT NULL,
    closed_at         BIGINT        NOT NULL DEFAULT 0,
    closed_by         TEXT          NOT NULL DEFAULT (''),
    reason            TEXT          NOT NULL DEFAULT (''),
    place             TEXT          NOT NULL,
    error             TEXT          NOT NULL,
    created_at        BIGINT        NOT NULL,
    aggregate_version BIGINT        NOT NULL,
    max_attempts      BIGINT        NOT NULL DEFAULT 0,
    topic             MEDIUMTEXT    NOT NULL,
    type              MEDIUMTEXT    NOT NULL,
    aggregate_type    MEDIUMTEXT    NOT NULL,
    aggregate_id      MEDIUMTEXT    NOT NULL,
    message_id        MEDIUMTEXT    NOT NULL,
    event_key         MEDIUMTEXT    NOT NULL,
    headers           MEDIUMTEXT    NOT NULL,
    payload           LONGBLOB      NOT NULL,
    UNIQUE KEY inbox_dead_id (id),
    KEY inbox_dead_open (state, consumer, aggregate_digest, position, seq),
    KEY inbox_dead_list (state, seq),
    KEY inbox_dead_key (state, consumer, key_digest)
);

-- state: 0 waiting, 1 started (under a lease), 2 done, 3 failed.
CREATE TABLE IF NOT EXISTS outside_call (
    id          BIGINT        NOT NULL AUTO_INCREMENT PRIMARY KEY,
    kind        VARCHAR(255)  NOT NULL,
    call_key    VARCHAR(255)  NOT NULL,
    key_digest  VARBINARY(64) NOT NULL CHECK (LENGTH(key_digest) = 32),
    call_group  VARCHAR(255)  NOT NULL DEFAULT '',
    state       BIGINT        NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 3),
    token       BIGINT        NOT NULL DEFAULT 0,
    lease_until BIGINT        NOT NULL DEFAULT 0,
    attempts    BIGINT        NOT NULL DEFAULT 0,
    ambiguous   BIGINT        NOT NULL DEFAULT 0,
    next_at     BIGINT        NOT NULL,
    created_at  BIGINT        NOT NULL,
    updated_at  BIGINT        NOT NULL,
    error       TEXT          NOT NULL DEFAULT (''),
    result      LONGBLOB,
    payload     LONGBLOB      NOT NULL,
    UNIQUE KEY outside_call_key (key_digest),
    KEY outside_call_waiting (state, next_at),
    KEY outside_call_started (state, lease_until),
    KEY outside_call_finished (state, updated_at),
    KEY outside_call_group (call_group, state, id)
);

-- A row for each group of calls, locked while one is added: the order of a group is the order of commits.
CREATE TABLE IF NOT EXISTS outside_group (
    call_group VARCHAR(255) NOT NULL PRIMARY KEY
);

CREATE TABLE IF NOT EXISTS machine_transition (
    id         BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    machine    VARCHAR(100) NOT NULL,
    entity_id  VARCHAR(255) NOT NULL,
    move       VARCHAR(100) NOT NULL,
    from_state VARCHAR(100) NOT NULL,
    to_state   VARCHAR(100) NOT NULL,
    cause      VARCHAR(255) NOT NULL,
    cause_key  VARCHAR(255) NOT NULL,
    actor      VARCHAR(255) NOT NULL,
    version    BIGINT       NOT NULL,
    at         BIGINT       NOT NULL,
    KEY machine_transition_entity (machine, entity_id)
);

CREATE TABLE IF NOT EXISTS idempotency_record (
    id           BIGINT        NOT NULL AUTO_INCREMENT PRIMARY KEY,
    scope        VARCHAR(255)  NOT NULL,
    key_digest   VARBINARY(64) NOT NULL CHECK (LENGTH(key_digest) = 32),
    request_key  VARCHAR(255)  NOT NULL,
    fingerprint  VARBINARY(64) NOT NULL,
    status       BIGINT        NOT NULL,
    created_at   BIGINT        NOT NULL,
    header       MEDIUMTEXT    NOT NULL,
    body         LONGBLOB      NOT NULL,
    UNIQUE KEY idempotency_record_key (scope, key_digest)
);

-- Which programs may run while a newer one has migrated the database: a migration that lets programs run which know only version
-- least of its set says so here, in a row of its own. Without that row older programs are refused.
CREATE TABLE IF NOT EXISTS migration_compatible (
    set_name VARCHAR(100) NOT NULL,
    version  BIGINT       NOT NULL,
    least    BIGINT       NOT NULL,
    PRIMARY KEY (set_name, version)
);
