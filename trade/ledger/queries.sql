-- The statements of the ledger. There is none that changes or deletes a journal or a posting.

-- name: Advance
-- Takes the end of the chain until commit: on PostgreSQL and MySQL the next appender waits here, on SQLite there is one writer
-- anyway. It is the one row that all journals share; batches keep that to one wait per commit.
UPDATE ledger_head SET seq = seq + 1 WHERE name = 'main'

-- name: Retreat
-- The end of the chain is held since Advance: nobody has seen the number.
UPDATE ledger_head SET seq = seq - 1 WHERE name = 'main'

-- name: Head
SELECT seq, hash FROM ledger_head WHERE name = 'main'

-- name: SetHead
UPDATE ledger_head SET hash = ? WHERE name = 'main' AND seq = ?

-- name: AddJournal
-- Plain, not :once: the caller has the end of the chain and looked for the key since.
INSERT INTO journal (journal_key, seq, kind, order_no, corrects, reason, cause, actor, at, prev_hash, hash)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: AddPosting
INSERT INTO posting (journal_key, line_no, account, currency, debit, credit, order_no, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: FindJournal
SELECT journal_key, seq, kind, order_no, corrects, reason, cause, actor, at, prev_hash, hash FROM journal WHERE journal_key = ?

-- name: PostingsOfJournal
SELECT journal_key, line_no, account, currency, debit, credit, order_no, at FROM posting WHERE journal_key = ? ORDER BY line_no

-- name: JournalsOfOrder
SELECT journal_key, seq, kind, order_no, corrects, reason, cause, actor, at, prev_hash, hash FROM journal WHERE order_no = ? ORDER BY seq

-- name: JournalsAfter
SELECT journal_key, seq, kind, order_no, corrects, reason, cause, actor, at, prev_hash, hash FROM journal WHERE seq > ? ORDER BY seq LIMIT ?

-- name: PostingsBetween
-- The postings of a page of journals, for the verifier.
SELECT p.journal_key, p.line_no, p.account, p.currency, p.debit, p.credit, p.order_no, p.at
FROM journal j JOIN posting p ON p.journal_key = j.journal_key
WHERE j.seq > ? AND j.seq <= ? ORDER BY j.seq, p.line_no

-- name: OrphanPostings
-- A posting without a journal is in no hash.
SELECT p.journal_key, p.line_no, p.account, p.currency, p.debit, p.credit, p.order_no, p.at FROM posting p
LEFT JOIN journal j ON j.journal_key = p.journal_key WHERE j.journal_key IS NULL ORDER BY p.journal_key, p.line_no LIMIT 1

-- name: TrialBalance
SELECT account, currency, SUM(debit) AS debit, SUM(credit) AS credit FROM posting GROUP BY account, currency ORDER BY account, currency

-- name: BalanceOf
SELECT account, currency, SUM(debit) AS debit, SUM(credit) AS credit FROM posting WHERE account = ?
GROUP BY account, currency ORDER BY currency

-- name: PostingsOfAccount
SELECT p.journal_key, p.line_no, p.currency, p.debit, p.credit, p.order_no, p.at, j.seq
FROM posting p JOIN journal j ON j.journal_key = p.journal_key
WHERE p.account = ? AND j.seq > ? ORDER BY j.seq, p.line_no LIMIT ?

-- name: SuspenseByOrder
SELECT order_no, currency, SUM(debit) - SUM(credit) AS balance, MIN(at) AS since FROM posting WHERE account = 'suspense'
GROUP BY order_no, currency HAVING SUM(debit) <> SUM(credit) ORDER BY MIN(at), order_no, currency LIMIT ?
