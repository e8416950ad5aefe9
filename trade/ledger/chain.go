package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"

	"github.com/convergo/convergo"
)

// hashVersion starts what is hashed; another layout gets another version.
const hashVersion = "convergo.ledger.1"

// digest is the journal's hash: SHA-256 in hexadecimal over, in this order, the layout's version, prev_hash, seq, key, kind,
// order_no, corrects, reason, cause, actor, at (microseconds), the number of postings and of each account, currency, debit and
// credit. Text is preceded by its length as eight bytes, numbers are eight bytes, both big-endian: no two journals have the same
// bytes.
func (j Journal) digest() string {
	h := sha256.New()
	text(h, hashVersion, j.PrevHash)
	number(h, j.Seq)
	text(h, j.Key, j.Kind, j.OrderNo, j.Corrects, j.Reason, j.Cause, j.Actor)
	number(h, convergo.Micros(j.At), int64(len(j.Postings)))
	for _, p := range j.Postings {
		text(h, p.Account, p.Currency)
		number(h, p.Debit, p.Credit)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func text(h hash.Hash, values ...string) {
	for _, v := range values {
		number(h, int64(len(v)))
		h.Write([]byte(v))
	}
}

func number(h hash.Hash, values ...int64) {
	for _, v := range values {
		var b [8]byte
		binary.BigEndian.PutUint64(b[:], uint64(v))
		h.Write(b[:])
	}
}

// Chain is what Verify found.
type Chain struct {
	Journals int64  `json:"journals"` // how many were checked before the end or the first break
	Intact   bool   `json:"intact"`
	Seq      int64  `json:"seq,omitempty"` // of the first broken link
	Key      string `json:"key,omitempty"` // its journal
	Broken   string `json:"broken,omitempty"`
}

// Verify walks the chain from its beginning and names the first broken link: a journal that is missing, was slipped in, does not follow
// the one before, was changed (or a posting of it was, added or removed), or does not balance; then postings of no journal, and journals
// that were cut off at the end. It reads all journals in pages; call it in a read-only transaction with one snapshot.
//
// Who can write the database can also write a new chain from the changed journal on. Keep a hash elsewhere (a log, a statement, a
// print-out) to see that too.
func (s *Service) Verify(ctx context.Context, tx convergo.Tx) (Chain, error) {
	const page = 500
	var c Chain
	last := Journal{}
	for {
		journals, err := s.journals(ctx, tx, "JournalsAfter", last.Seq, page)
		if err != nil {
			return c, err
		}
		if len(journals) == 0 {
			return s.verifyEnd(ctx, tx, c, last)
		}
		rows, err := s.postings(ctx, tx, "PostingsBetween", last.Seq, journals[len(journals)-1].Seq)
		if err != nil {
			return c, err
		}
		byKey := map[string][]postingRow{}
		for _, r := range rows {
			byKey[r.JournalKey] = append(byKey[r.JournalKey], r)
		}
		for _, j := range journals {
			if why := j.follows(last, byKey[j.Key]); why != "" {
				c.Seq, c.Key, c.Broken = j.Seq, j.Key, why
				return c, nil
			}
			c.Journals++
			last = j
		}
	}
}

// follows tells what is wrong with j as the successor of last; empty when nothing is.
func (j *Journal) follows(last Journal, rows []postingRow) string {
	if j.Seq != last.Seq+1 {
		return fmt.Sprintf("%d journals are missing before it", j.Seq-last.Seq-1)
	}
	if j.PrevHash != last.Hash {
		return fmt.Sprintf("it does not name the hash of journal %d", last.Seq)
	}
	for i, r := range rows {
		if r.LineNo != int64(i+1) || r.OrderNo != j.OrderNo || r.At != convergo.Micros(j.At) {
			return fmt.Sprintf("its posting %d was changed, or one before it is missing", r.LineNo)
		}
		j.Postings = append(j.Postings, r.posting())
	}
	if j.digest() != j.Hash {
		return "it or one of its postings was changed"
	}
	if err := balanced(j.Postings); err != nil {
		return err.Error()
	}
	return ""
}

func (s *Service) verifyEnd(ctx context.Context, tx convergo.Tx, c Chain, last Journal) (Chain, error) {
	orphans, err := s.postings(ctx, tx, "OrphanPostings")
	if err != nil {
		return c, err
	}
	if len(orphans) > 0 {
		c.Key, c.Broken = orphans[0].JournalKey, "there are postings of it and no journal"
		return c, nil
	}
	var seq int64
	var end string
	if err := tx.QueryRowContext(ctx, s.sql.Get("Head")).Scan(&seq, &end); err != nil {
		return c, fmt.Errorf("read the end of the chain: %w", err)
	}
	if seq != last.Seq || end != last.Hash {
		c.Seq, c.Broken = last.Seq+1, fmt.Sprintf("the chain ended at %d and ends at %d", seq, last.Seq)
		return c, nil
	}
	c.Intact = true
	return c, nil
}
