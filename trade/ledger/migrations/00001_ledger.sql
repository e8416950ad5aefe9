-- An immutable double-entry ledger. Balances are derived; a correction is a new journal.
-- +goose Up

-- One row: the end of the chain. It is what makes appending a queue, and it shows when the newest journals were cut off.
CREATE TABLE ledger_head (
  name VARCHAR(10) NOT NULL PRIMARY KEY,
  seq BIGINT NOT NULL,
  hash VARCHAR(64) NOT NULL
);
INSERT INTO ledger_head (name, seq, hash) VALUES ('main', 0, '');

-- hash = SHA-256 over prev_hash, seq, the other columns and the postings; see chain.go for the exact bytes.
CREATE TABLE journal (
  journal_key VARCHAR(255) NOT NULL PRIMARY KEY,
  seq BIGINT NOT NULL UNIQUE,
  kind VARCHAR(20) NOT NULL,
  order_no VARCHAR(64) NOT NULL,
  corrects VARCHAR(255) NOT NULL,
  reason TEXT NOT NULL,
  cause VARCHAR(255) NOT NULL,
  actor VARCHAR(255) NOT NULL,
  at BIGINT NOT NULL,
  prev_hash VARCHAR(64) NOT NULL,
  hash VARCHAR(64) NOT NULL,
  CONSTRAINT journal_seq CHECK (seq > 0)
);
CREATE INDEX journal_order ON journal (order_no);

CREATE TABLE posting (
  journal_key VARCHAR(255) NOT NULL,
  line_no INTEGER NOT NULL,
  account VARCHAR(100) NOT NULL,
  currency VARCHAR(3) NOT NULL,
  debit BIGINT NOT NULL,
  credit BIGINT NOT NULL,
  order_no VARCHAR(64) NOT NULL,
  at BIGINT NOT NULL,
  PRIMARY KEY (journal_key, line_no),
  CONSTRAINT posting_one_side CHECK ((debit > 0 AND credit = 0) OR (debit = 0 AND credit > 0))
);
CREATE INDEX posting_account ON posting (account, currency, at);

-- +goose Down
DROP TABLE posting;
DROP TABLE journal;
DROP TABLE ledger_head;
