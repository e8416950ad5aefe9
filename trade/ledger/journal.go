package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
)

// Posting is one line of a journal: an amount in minor units on one side of an account.
type Posting struct {
	Account  string `json:"account"`
	Currency string `json:"currency"`
	Debit    int64  `json:"debit"`
	Credit   int64  `json:"credit"`
}

// Journal is what happened, as postings that balance per currency.
type Journal struct {
	Seq      int64     `json:"seq"`
	Key      string    `json:"key"` // business identity, for example "ORDER_PAID:O-1"
	Kind     string    `json:"kind"`
	OrderNo  string    `json:"order_no,omitempty"`
	Corrects string    `json:"corrects,omitempty"` // key of the journal that this one turns around
	Reason   string    `json:"reason,omitempty"`
	Cause    string    `json:"cause"` // key of the event or the request
	Actor    string    `json:"actor"`
	At       time.Time `json:"at"`
	Postings []Posting `json:"postings"`
	Hash     string    `json:"hash"` // SHA-256 in hexadecimal, see chain.go
	PrevHash string    `json:"prev_hash"`
}

// ErrUnbalanced is wrapped when a journal's debits and credits differ in a currency.
var ErrUnbalanced = errors.New("journal does not balance")

// Post appends the journal in tx and records it as an effect. Postings of amount 0 are left out. fresh is false, and nothing is
// written, when a journal with its key and the same postings is there already. Seq, At and the hashes are set here. An error is
// permanent when the journal itself is wrong: it does not balance, an amount is negative, a name is not one, or its key was used for
// other postings.
//
// Two transactions at the same key: both find no journal, both take the end of the chain; the database runs one after the other
// there, and the second looks again and finds what the first has committed.
func (s *Service) Post(ctx context.Context, tx convergo.Tx, j Journal) (fresh bool, err error) {
	j.Postings = slices.DeleteFunc(slices.Clone(j.Postings), func(p Posting) bool { return p.Debit == 0 && p.Credit == 0 })
	if err := j.check(); err != nil {
		return false, convergo.Permanent(fmt.Errorf("journal %q: %w", j.Key, err))
	}
	before, err := s.journal(ctx, tx, j.Key)
	if err == nil && before == nil {
		before, err = s.append(ctx, tx, &j)
	}
	switch {
	case err != nil:
		return false, fmt.Errorf("journal %s: %w", j.Key, err)
	case before == nil:
	case !slices.Equal(before.Postings, j.Postings):
		return false, convergo.Permanent(fmt.Errorf("journal %s is there with other postings than %s now says: %w", j.Key, j.Cause,
			convergo.ErrInvalid))
	default:
		return false, nil
	}
	recorded, err := trade.RecordEffect(ctx, tx, s.DB.Dialect(), trade.Effect{
		Key: convergo.Key(j.Key), OrderNo: j.OrderNo, Kind: "ledger." + strings.ToLower(j.Kind), Reverses: convergo.Key(j.Corrects),
		Cause: convergo.Key(j.Cause), Detail: j.Reason, At: j.At,
	})
	if err == nil && !recorded {
		err = convergo.Permanent(fmt.Errorf("journal %s: its effect is there although the journal is not", j.Key))
	}
	return err == nil, err
}

// append gives the journal its place in the chain and writes it. When another transaction wrote the key while this one waited for the
// end of the chain, that journal is before, and nothing is written.
func (s *Service) append(ctx context.Context, tx convergo.Tx, j *Journal) (before *Journal, err error) {
	if _, err := tx.ExecContext(ctx, s.sql.Get("Advance")); err != nil {
		return nil, fmt.Errorf("take the end of the chain: %w", err)
	}
	if before, err = s.journal(ctx, tx, j.Key); err != nil {
		return nil, err
	}
	if before != nil {
		if _, err := tx.ExecContext(ctx, s.sql.Get("Retreat")); err != nil {
			return nil, fmt.Errorf("leave the end of the chain: %w", err)
		}
		return before, nil
	}
	return nil, s.write(ctx, tx, j)
}

func (s *Service) write(ctx context.Context, tx convergo.Tx, j *Journal) error {
	if err := tx.QueryRowContext(ctx, s.sql.Get("Head")).Scan(&j.Seq, &j.PrevHash); err != nil {
		return fmt.Errorf("read the end of the chain: %w", err)
	}
	j.At = convergo.FromMicros(convergo.Micros(s.Now()))
	j.Hash = j.digest()
	at := convergo.Micros(j.At)
	if _, err := tx.ExecContext(ctx, s.sql.Get("AddJournal"), j.Key, j.Seq, j.Kind, j.OrderNo, j.Corrects, j.Reason, j.Cause, j.Actor, at,
		j.PrevHash, j.Hash); err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	for i, p := range j.Postings {
		if _, err := tx.ExecContext(ctx, s.sql.Get("AddPosting"), j.Key, i+1, p.Account, p.Currency, p.Debit, p.Credit, j.OrderNo,
			at); err != nil {
			return fmt.Errorf("posting %d: %w", i+1, err)
		}
	}
	if _, err := tx.ExecContext(ctx, s.sql.Get("SetHead"), j.Hash, j.Seq); err != nil {
		return fmt.Errorf("move the end of the chain: %w", err)
	}
	return nil
}

// check tells whether the journal may be posted.
func (j Journal) check() error {
	if err := convergo.Key(j.Key).Validate(); err != nil {
		return fmt.Errorf("key %w", err)
	}
	if len(j.OrderNo) > trade.MaxID || len(j.Reason) > maxReason {
		return fmt.Errorf("order number or reason too long: %w", convergo.ErrInvalid)
	}
	for i, p := range j.Postings {
		err := errors.Join(convergo.Key(p.Account).Validate(), trade.CheckCurrency(p.Currency), trade.CheckMinor(p.Debit),
			trade.CheckMinor(p.Credit))
		if err == nil && p.Debit != 0 && p.Credit != 0 {
			err = fmt.Errorf("both sides are filled: %w", convergo.ErrInvalid)
		}
		if err == nil && len(p.Account) > maxAccount {
			err = fmt.Errorf("account longer than %d bytes: %w", maxAccount, convergo.ErrInvalid)
		}
		if err != nil {
			return fmt.Errorf("posting %d to %q: %w", i+1, p.Account, err)
		}
	}
	return balanced(j.Postings)
}

// Limits of a journal, in bytes.
const (
	maxReason  = 1000
	maxAccount = 100
)

// balanced wraps ErrUnbalanced with the first currency in which debits and credits differ.
func balanced(postings []Posting) error {
	sums := map[string]int64{}
	for _, p := range postings {
		sums[p.Currency] += p.Debit - p.Credit // a few lines of at most trade.MaxMinor each: far from the end of an int64
	}
	for _, p := range postings {
		if d := sums[p.Currency]; d != 0 {
			return fmt.Errorf("debits less credits are %d %s: %w", d, p.Currency, ErrUnbalanced)
		}
	}
	return nil
}

// Correct turns a journal around: the same postings on the other sides, under the key "CORRECTION:{key}", so at most once.
// The journal stays as it is. The error is a trade.Problem when there is no such journal or it was corrected for another reason.
func (s *Service) Correct(ctx context.Context, tx convergo.Tx, key, reason string, cause convergo.Key, actor string) (*Journal, error) {
	wrong, err := s.journal(ctx, tx, key)
	if err != nil {
		return nil, err
	}
	if wrong == nil {
		return nil, trade.NotFound("body.journal_key", fmt.Sprintf("there is no journal %q", key))
	}
	c := Journal{
		Key: correction + ":" + key, Kind: correction, OrderNo: wrong.OrderNo, Corrects: key, Reason: reason, Cause: string(cause), Actor: actor,
	}
	if err := convergo.Key(c.Key).Validate(); err != nil {
		return nil, trade.Invalid("body.journal_key", "the correction's key "+err.Error(), "post a correction of the original journal instead")
	}
	for _, p := range wrong.Postings {
		c.Postings = append(c.Postings, Posting{p.Account, p.Currency, p.Credit, p.Debit})
	}
	if _, err := s.Post(ctx, tx, c); err != nil {
		return nil, err
	}
	made, err := s.journal(ctx, tx, c.Key)
	if err == nil && made.Reason != reason {
		err = trade.Conflict("body.journal_key", fmt.Sprintf("journal %s was corrected before: %s", key, made.Reason),
			"a journal is corrected once; see GET /ledger/orders/{no}")
	}
	return made, err
}

const correction = "CORRECTION"

// journal with its postings; nil when there is none with the key.
func (s *Service) journal(ctx context.Context, tx convergo.Tx, key string) (*Journal, error) {
	var r journalRow
	err := tx.QueryRowContext(ctx, s.sql.Get("FindJournal"), key).Scan(r.columns()...)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("find journal %s: %w", key, err)
	}
	j := r.journal()
	rows, err := s.postings(ctx, tx, "PostingsOfJournal", key)
	if err != nil {
		return nil, err
	}
	for _, p := range rows {
		j.Postings = append(j.Postings, p.posting())
	}
	return &j, nil
}

type journalRow struct {
	JournalKey, Kind, OrderNo, Corrects, Reason, Cause, Actor, PrevHash, Hash string
	Seq, At                                                                   int64
}

// columns in the order of every SELECT of journals.
func (r *journalRow) columns() []any {
	return []any{&r.JournalKey, &r.Seq, &r.Kind, &r.OrderNo, &r.Corrects, &r.Reason, &r.Cause, &r.Actor, &r.At, &r.PrevHash, &r.Hash}
}

func (r *journalRow) journal() Journal {
	return Journal{
		Seq: r.Seq, Key: r.JournalKey, Kind: r.Kind, OrderNo: r.OrderNo, Corrects: r.Corrects, Reason: r.Reason, Cause: r.Cause, Actor: r.Actor,
		At: convergo.FromMicros(r.At), Postings: []Posting{}, Hash: r.Hash, PrevHash: r.PrevHash,
	}
}

type postingRow struct {
	JournalKey, Account, Currency, OrderNo string
	LineNo, Debit, Credit, At              int64
}

func (r postingRow) posting() Posting { return Posting{r.Account, r.Currency, r.Debit, r.Credit} }

// journals runs a statement that selects journals, without their postings.
func (s *Service) journals(ctx context.Context, tx convergo.Tx, statement string, args ...any) (found []Journal, err error) {
	rows, err := tx.QueryContext(ctx, s.sql.Get(statement), args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", statement, err)
	}
	defer rows.Close()
	for rows.Next() {
		var r journalRow
		if err := rows.Scan(r.columns()...); err != nil {
			return nil, fmt.Errorf("%s: %w", statement, err)
		}
		found = append(found, r.journal())
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", statement, err)
	}
	return found, nil
}

// postings runs a statement that selects postings.
func (s *Service) postings(ctx context.Context, tx convergo.Tx, statement string, args ...any) (found []postingRow, err error) {
	rows, err := tx.QueryContext(ctx, s.sql.Get(statement), args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", statement, err)
	}
	defer rows.Close()
	for rows.Next() {
		var r postingRow
		if err := rows.Scan(&r.JournalKey, &r.LineNo, &r.Account, &r.Currency, &r.Debit, &r.Credit, &r.OrderNo, &r.At); err != nil {
			return nil, fmt.Errorf("%s: %w", statement, err)
		}
		found = append(found, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", statement, err)
	}
	return found, nil
}
