package check

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
)

// ledgerChain recomputes the SHA-256 chain over the journals from the description of its bytes: length-prefixed text and
// eight-byte big-endian numbers, in the order below. It names the first link that does not hold.
func ledgerChain(ctx context.Context, tx *sql.Tx) (Equation, error) {
	e := Equation{Name: "the ledger's hash chain is whole"}
	var all []*journal
	err := each(ctx, tx, `SELECT j.journal_key, j.seq, j.kind, j.order_no, j.corrects, j.reason, j.cause, j.actor, j.at, j.prev_hash, j.hash,
		p.journal_key IS NOT NULL, COALESCE(p.account, ''), COALESCE(p.currency, ''), COALESCE(p.debit, 0), COALESCE(p.credit, 0)
		FROM ledger.journal j LEFT JOIN ledger.posting p ON p.journal_key = j.journal_key ORDER BY j.seq, p.line_no`, func(scan func(...any) error) error {
		var j journal
		var p posting
		var posted bool
		if err := scan(&j.key, &j.seq, &j.kind, &j.orderNo, &j.corrects, &j.reason, &j.cause, &j.actor, &j.at, &j.prev, &j.hash,
			&posted, &p.account, &p.currency, &p.debit, &p.credit); err != nil {
			return err
		}
		if n := len(all); n == 0 || all[n-1].key != j.key {
			all = append(all, &j)
		}
		if posted {
			last := all[len(all)-1]
			last.postings = append(last.postings, p)
		}
		return nil
	})
	if err != nil {
		return e, err
	}
	e.Checked = len(all)
	var seq int64
	hash := ""
	for _, j := range all {
		if j.seq != seq+1 || j.prev != hash || j.digest() != j.hash {
			e.Broken, e.Detail = 1, fmt.Sprintf("the first broken link is number %d, %s", j.seq, j.key)
			return e, nil
		}
		seq, hash = j.seq, j.hash
	}
	var head int64
	var headHash string
	err = tx.QueryRowContext(ctx, `SELECT seq, hash FROM ledger.ledger_head WHERE name = 'main'`).Scan(&head, &headHash)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		e.Broken, e.Detail = 1, "the head that says how many journals were written is not there"
		return e, nil
	case err != nil:
		return e, err
	}
	if head != seq || headHash != hash {
		e.Broken, e.Detail = 1, fmt.Sprintf("the head says that %d journals were written and ends in %.12s; %d are there and end in %.12s", head, headHash, seq, hash)
	}
	return e, nil
}

type journal struct {
	key, kind, orderNo, corrects, reason, cause, actor, prev, hash string
	seq, at                                                        int64
	postings                                                       []posting
}

type posting struct {
	account, currency string
	debit, credit     int64
}

func (j *journal) digest() string {
	var b []byte
	number := func(n int64) { b = binary.BigEndian.AppendUint64(b, uint64(n)) }
	text := func(s string) { number(int64(len(s))); b = append(b, s...) }
	text("convergo.ledger.1")
	text(j.prev)
	number(j.seq)
	for _, s := range []string{j.key, j.kind, j.orderNo, j.corrects, j.reason, j.cause, j.actor} {
		text(s)
	}
	number(j.at)
	number(int64(len(j.postings)))
	for _, p := range j.postings {
		text(p.account)
		text(p.currency)
		number(p.debit)
		number(p.credit)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
