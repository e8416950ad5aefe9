-- One decision per transactional message, made once: by the local transaction (1, commit) or, when the broker asks before
-- that one has committed, by the answer to it (2, roll back). Whoever inserts the row first has decided for good.
-- transaction_id is 32 hexadecimal digits, which no collation folds. Times are microseconds since 1970 UTC.

-- +goose Up
CREATE TABLE rocketmq_decision (
    transaction_id CHAR(32) NOT NULL PRIMARY KEY,
    decision       SMALLINT NOT NULL CHECK (decision IN (1, 2)),
    decided_at     BIGINT   NOT NULL
);

-- For the purge.
CREATE INDEX rocketmq_decision_decided ON rocketmq_decision (decided_at);

-- +goose Down
DROP TABLE rocketmq_decision;
