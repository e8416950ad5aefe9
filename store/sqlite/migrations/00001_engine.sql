-- The engine's own tables. Names and columns of outbox_event are a public contract: a program in any language that
-- inserts a row into it, in its own transaction, has written an event. Times are microseconds since 1970 UTC, 0 is none.
-- key_digest = SHA-256(event_key), aggregate_digest = SHA-256(aggregate_type || '/' || aggregate_id),
-- lane = first byte of aggregate_digest modulo 64.

-- +goose Up

-- Insert-only. Wide columns stand last, so that a scan over the narrow ones does not walk their overflow pages.
-- AUTOINCREMENT: an id is never handed out again, also after the newest row has been deleted. It counts from the highest id
-- ever; a program that gave one near 2^63 would have used them all up, so that is refused.
CREATE TABLE outbox_event (
    id                INTEGER PRIMARY KEY AUTOINCREMENT CHECK (id BETWEEN 1 AND 4611686018427387904),
    created_at        INTEGER NOT NULL CHECK (typeof(created_at) = 'integer'),
    deliver_at        INTEGER NOT NULL DEFAULT 0 CHECK (typeof(deliver_at) = 'integer'),
    lane              INTEGER NOT NULL CHECK (typeof(lane) = 'integer' AND lane BETWEEN 0 AND 63),
    aggregate_version INTEGER NOT NULL DEFAULT 0 CHECK (typeof(aggregate_version) = 'integer' AND aggregate_version >= 0),
    max_attempts      INTEGER NOT NULL DEFAULT 0 CHECK (typeof(max_attempts) = 'integer' AND max_attempts >= 0),
    key_digest        BLOB    NOT NULL UNIQUE CHECK (typeof(key_digest) = 'blob' AND length(key_digest) = 32),
    aggregate_digest  BLOB    NOT NULL CHECK (typeof(aggregate_digest) = 'blob' AND length(aggregate_digest) = 32),
    topic             TEXT    NOT NULL CHECK (topic <> ''),
    type              TEXT    NOT NULL CHECK (type <> ''),
    aggregate_type    TEXT    NOT NULL CHECK (aggregate_type <> ''),
    aggregate_id      TEXT    NOT NULL CHECK (aggregate_id <> ''),
    message_id        TEXT    NOT NULL CHECK (message_id <> ''),
    event_key         TEXT    NOT NULL CHECK (event_key <> ''),
    headers           TEXT    NOT NULL DEFAULT '{}',
    payload           BLOB    NOT NULL
);

-- For replays: a delayed event was sent long after it was written.
CREATE INDEX outbox_event_deliver ON outbox_event (deliver_at) WHERE deliver_at > 0;

-- Presence means pending. The index holds (lane, seq): a lane is read in order without sorting anything.
CREATE TABLE outbox_pending (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    lane     INTEGER NOT NULL,
    event_id INTEGER NOT NULL
);
CREATE INDEX outbox_pending_lane ON outbox_pending (lane);

CREATE TABLE outbox_delayed (
    event_id   INTEGER PRIMARY KEY,
    lane       INTEGER NOT NULL,
    deliver_at INTEGER NOT NULL
);
CREATE INDEX outbox_delayed_due ON outbox_delayed (lane, deliver_at);

-- An aggregate with a row here is blocked: its events are not sent from their lane but queue in outbox_waiting.
-- held = 1: until a person has redriven or discarded its dead event.
CREATE TABLE outbox_blocked (
    aggregate_digest BLOB    PRIMARY KEY,
    lane             INTEGER NOT NULL,
    aggregate_type   TEXT    NOT NULL,
    aggregate_id     TEXT    NOT NULL,
    attempts         INTEGER NOT NULL DEFAULT 0,
    next_attempt_at  INTEGER NOT NULL,
    held             INTEGER NOT NULL DEFAULT 0,
    last_error       TEXT    NOT NULL DEFAULT '',
    blocked_at       INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX outbox_blocked_due ON outbox_blocked (lane, held, next_attempt_at);

-- seq is the one that the event had in outbox_pending, so that order survives parking and redriving.
CREATE TABLE outbox_waiting (
    seq              INTEGER PRIMARY KEY,
    event_id         INTEGER NOT NULL,
    attempts         INTEGER NOT NULL DEFAULT 0,
    aggregate_digest BLOB    NOT NULL
);
CREATE INDEX outbox_waiting_queue ON outbox_waiting (aggregate_digest, seq);

CREATE TABLE outbox_dead (
    event_id         INTEGER PRIMARY KEY,
    seq              INTEGER NOT NULL,
    hold             INTEGER NOT NULL,
    attempts         INTEGER NOT NULL,
    died_at          INTEGER NOT NULL,
    aggregate_digest BLOB    NOT NULL,
    place            TEXT    NOT NULL,
    error            TEXT    NOT NULL
);
CREATE INDEX outbox_dead_aggregate ON outbox_dead (aggregate_digest, seq);

-- Dead events that a person gave up: they will never be sent. Kept on record until their event is purged.
CREATE TABLE outbox_discarded (
    event_id     INTEGER PRIMARY KEY,
    attempts     INTEGER NOT NULL,
    died_at      INTEGER NOT NULL,
    place        TEXT    NOT NULL,
    error        TEXT    NOT NULL,
    discarded_at INTEGER NOT NULL,
    discarded_by TEXT    NOT NULL,
    reason       TEXT    NOT NULL
);

-- +goose StatementBegin
CREATE TRIGGER outbox_event_pending AFTER INSERT ON outbox_event WHEN NEW.deliver_at <= 0
BEGIN
    INSERT INTO outbox_pending (lane, event_id) VALUES (NEW.lane, NEW.id);
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER outbox_event_delayed AFTER INSERT ON outbox_event WHEN NEW.deliver_at > 0
BEGIN
    INSERT INTO outbox_delayed (event_id, lane, deliver_at) VALUES (NEW.id, NEW.lane, NEW.deliver_at);
END;
-- +goose StatementEnd

-- token grows at each acquisition and survives a release.
CREATE TABLE outbox_lane (
    lane       INTEGER PRIMARY KEY,
    owner      TEXT    NOT NULL DEFAULT '',
    token      INTEGER NOT NULL DEFAULT 0,
    expires_at INTEGER NOT NULL DEFAULT 0
);
INSERT INTO outbox_lane (lane)
WITH RECURSIVE l (lane) AS (SELECT 0 UNION ALL SELECT lane + 1 FROM l WHERE lane < 63) SELECT lane FROM l;

CREATE TABLE outbox_relay (
    owner      TEXT    PRIMARY KEY,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;

-- id grows with time, so that old marks are found without an index on their time.
CREATE TABLE inbox_mark (
    id             INTEGER PRIMARY KEY,
    marked_at      INTEGER NOT NULL,
    consumer       TEXT    NOT NULL,
    key_digest     BLOB    NOT NULL,
    payload_digest BLOB    NOT NULL,
    UNIQUE (consumer, key_digest)
);

CREATE TABLE inbox_version (
    consumer         TEXT    NOT NULL,
    aggregate_digest BLOB    NOT NULL,
    version          INTEGER NOT NULL,
    PRIMARY KEY (consumer, aggregate_digest)
) WITHOUT ROWID;

CREATE TABLE inbox_blocked (
    consumer         TEXT    NOT NULL,
    aggregate_digest BLOB    NOT NULL,
    aggregate_type   TEXT    NOT NULL,
    aggregate_id     TEXT    NOT NULL,
    next_attempt_at  INTEGER NOT NULL,
    held             INTEGER NOT NULL DEFAULT 0,
    blocked_at       INTEGER NOT NULL,
    PRIMARY KEY (consumer, aggregate_digest)
) WITHOUT ROWID;
CREATE INDEX inbox_blocked_due ON inbox_blocked (consumer, held, next_attempt_at);

-- position is the order within an aggregate's queue; a new one is above all that were ever given (see EnqueueMessage). A
-- message is known by its key, aggregate and payload: until it is marked nobody knows whether two with one key are the same.
CREATE TABLE inbox_waiting (
    id                INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer          TEXT    NOT NULL,
    key_digest        BLOB    NOT NULL,
    aggregate_digest  BLOB    NOT NULL,
    position          INTEGER NOT NULL,
    attempts          INTEGER NOT NULL DEFAULT 0,
    last_error        TEXT    NOT NULL DEFAULT '',
    enqueued_at       INTEGER NOT NULL,
    created_at        INTEGER NOT NULL,
    aggregate_version INTEGER NOT NULL,
    max_attempts      INTEGER NOT NULL DEFAULT 0,
    topic             TEXT    NOT NULL,
    type              TEXT    NOT NULL,
    aggregate_type    TEXT    NOT NULL,
    aggregate_id      TEXT    NOT NULL,
    message_id        TEXT    NOT NULL,
    event_key         TEXT    NOT NULL,
    headers           TEXT    NOT NULL,
    payload           BLOB    NOT NULL,
    payload_digest    BLOB    NOT NULL DEFAULT x'',
    UNIQUE (consumer, key_digest, aggregate_digest, payload_digest)
);
CREATE INDEX inbox_waiting_queue ON inbox_waiting (consumer, aggregate_digest, position);

-- state is OPEN, REDRIVEN or DISCARDED.
CREATE TABLE inbox_dead (
    seq               INTEGER PRIMARY KEY AUTOINCREMENT,
    id                TEXT    NOT NULL UNIQUE,
    consumer          TEXT    NOT NULL,
    state             TEXT    NOT NULL DEFAULT 'OPEN' CHECK (state IN ('OPEN', 'REDRIVEN', 'DISCARDED')),
    hold              INTEGER NOT NULL,
    key_digest        BLOB    NOT NULL,
    aggregate_digest  BLOB    NOT NULL,
    position          INTEGER NOT NULL,
    attempts          INTEGER NOT NULL,
    died_at           INTEGER NOT NULL,
    closed_at         INTEGER NOT NULL DEFAULT 0,
    closed_by         TEXT    NOT NULL DEFAULT '',
    reason            TEXT    NOT NULL DEFAULT '',
    place             TEXT    NOT NULL,
    error             TEXT    NOT NULL,
    created_at        INTEGER NOT NULL,
    aggregate_version INTEGER NOT NULL,
    max_attempts      INTEGER NOT NULL DEFAULT 0,
    topic             TEXT    NOT NULL,
    type              TEXT    NOT NULL,
    aggregate_type    TEXT    NOT NULL,
    aggregate_id      TEXT    NOT NULL,
    message_id        TEXT    NOT NULL,
    event_key         TEXT    NOT NULL,
    headers           TEXT    NOT NULL,
    payload           BLOB    NOT NULL
);
CREATE INDEX inbox_dead_open ON inbox_dead (consumer, aggregate_digest, position) WHERE state = 'OPEN';
CREATE INDEX inbox_dead_list ON inbox_dead (seq) WHERE state = 'OPEN';
CREATE INDEX inbox_dead_key ON inbox_dead (consumer, key_digest) WHERE state = 'OPEN';

-- state: 0 waiting, 1 started (under a lease), 2 done, 3 failed.
CREATE TABLE outside_call (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    kind        TEXT    NOT NULL,
    call_key    TEXT    NOT NULL,
    key_digest  BLOB    NOT NULL UNIQUE,
    call_group  TEXT    NOT NULL DEFAULT '',
    state       INTEGER NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 3),
    token       INTEGER NOT NULL DEFAULT 0,
    lease_until INTEGER NOT NULL DEFAULT 0,
    attempts    INTEGER NOT NULL DEFAULT 0,
    ambiguous   INTEGER NOT NULL DEFAULT 0,
    next_at     INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    error       TEXT    NOT NULL DEFAULT '',
    result      BLOB,
    payload     BLOB    NOT NULL
);
CREATE INDEX outside_call_waiting ON outside_call (next_at) WHERE state = 0;
CREATE INDEX outside_call_started ON outside_call (lease_until) WHERE state = 1;
CREATE INDEX outside_call_finished ON outside_call (state, updated_at) WHERE state >= 2;
CREATE INDEX outside_call_group ON outside_call (call_group, id) WHERE state < 2 AND call_group <> '';

-- id grows with time, here and below: nothing needs to know that one was never given before.
CREATE TABLE machine_transition (
    id         INTEGER PRIMARY KEY,
    machine    TEXT    NOT NULL,
    entity_id  TEXT    NOT NULL,
    move       TEXT    NOT NULL,
    from_state TEXT    NOT NULL,
    to_state   TEXT    NOT NULL,
    cause      TEXT    NOT NULL,
    cause_key  TEXT    NOT NULL,
    actor      TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    at         INTEGER NOT NULL
);
CREATE INDEX machine_transition_entity ON machine_transition (machine, entity_id);

CREATE TABLE idempotency_record (
    id           INTEGER PRIMARY KEY,
    scope        TEXT    NOT NULL,
    key_digest   BLOB    NOT NULL,
    request_key  TEXT    NOT NULL,
    fingerprint  BLOB    NOT NULL,
    status       INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    header       TEXT    NOT NULL,
    body         BLOB    NOT NULL,
    UNIQUE (scope, key_digest)
);

-- Which programs may run while a newer one has migrated the database: a migration that lets programs run which know only version
-- least of its set says so here, in a row of its own. Without that row older programs are refused.
CREATE TABLE migration_compatible (
    set_name TEXT    NOT NULL,
    version  INTEGER NOT NULL,
    least    INTEGER NOT NULL,
    PRIMARY KEY (set_name, version)
);
