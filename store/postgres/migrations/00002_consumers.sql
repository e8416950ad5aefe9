-- What a consumer's instances tell one another: see inbox.Notes. Programs that know only version 1 do not look at these tables.

-- +goose Up

-- One row a partition of a source that cannot count deliveries: the first message at which work was begun last, and how often in a
-- row. It is written once after a process got the partition.
CREATE TABLE inbox_begun (
    begun_at   BIGINT  NOT NULL,
    times      INTEGER NOT NULL,
    consumer   TEXT    COLLATE "C" NOT NULL,
    part       TEXT    COLLATE "C" NOT NULL,
    key_digest BYTEA   NOT NULL CHECK (length(key_digest) = 32),
    PRIMARY KEY (consumer, part)
);

-- One row a type that some instance of the consumer handles, with the time when one last said so.
CREATE TABLE inbox_type (
    seen_at  BIGINT NOT NULL,
    consumer TEXT   COLLATE "C" NOT NULL,
    type     TEXT   COLLATE "C" NOT NULL,
    PRIMARY KEY (consumer, type)
);

INSERT INTO migration_compatible (set_name, version, least) VALUES ('engine', 2, 1);
