-- What a consumer's instances tell one another: see inbox.Notes. Programs that know only version 1 do not look at these tables.

-- +goose Up

-- One row a partition of a source that cannot count deliveries: the first message at which work was begun last, and how often in a
-- row. It is written once after a process got the partition.
CREATE TABLE inbox_begun (
    consumer   TEXT    NOT NULL,
    part       TEXT    NOT NULL,
    key_digest BLOB    NOT NULL,
    times      INTEGER NOT NULL,
    begun_at   INTEGER NOT NULL,
    PRIMARY KEY (consumer, part)
) WITHOUT ROWID;

-- One row a type that some instance of the consumer handles, with the time when one last said so.
CREATE TABLE inbox_type (
    consumer TEXT    NOT NULL,
    type     TEXT    NOT NULL,
    seen_at  INTEGER NOT NULL,
    PRIMARY KEY (consumer, type)
) WITHOUT ROWID;

INSERT INTO migration_compatible (set_name, version, least) VALUES ('engine', 2, 1);
