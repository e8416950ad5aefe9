-- What a consumer's instances tell one another: see inbox.Notes. Programs that know only version 1 do not look at these tables.
-- Each statement can be run again: MySQL commits at each one that changes the schema.

-- +goose Up

-- One row a partition of a source that cannot count deliveries: the first message at which work was begun last, and how often in a
-- row. It is written once after a process got the partition.
CREATE TABLE IF NOT EXISTS inbox_begun (
    consumer   VARCHAR(255)  NOT NULL,
    part       VARCHAR(300)  NOT NULL,
    key_digest VARBINARY(64) NOT NULL CHECK (LENGTH(key_digest) = 32),
    times      BIGINT        NOT NULL,
    begun_at   BIGINT        NOT NULL,
    PRIMARY KEY (consumer, part)
);

-- One row a type that some instance of the consumer handles, with the time when one last said so.
CREATE TABLE IF NOT EXISTS inbox_type (
    consumer VARCHAR(255) NOT NULL,
    type     VARCHAR(150) NOT NULL,
    seen_at  BIGINT       NOT NULL,
    PRIMARY KEY (consumer, type)
);

INSERT INTO migration_compatible (set_name, version, least) VALUES ('engine', 2, 1)
ON DUPLICATE KEY UPDATE least = VALUES(least);
