package ledger

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/georgysavva/scany/v2/sqlscan"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
)

// Routes registers the operations on the books. All are the operator's.
func (s *Service) Routes(api huma.API) {
	operation := func(id, path, summary string) huma.Operation {
		return huma.Operation{OperationID: id, Method: http.MethodGet, Path: path, Tags: []string{Name}, Summary: summary}
	}
	huma.Register(api, operation("get-trial-balance", "/ledger/trial-balance",
		"Sums of all accounts; debits equal credits per currency"), s.getTrial)
	huma.Register(api, operation("get-order-journals", "/ledger/orders/{order_no}", "Journals of an order"), s.getOrder)
	huma.Register(api, operation("get-account", "/ledger/accounts/{account}", "Balance and postings of an account"), s.getAccount)
	huma.Register(api, operation("get-suspense", "/ledger/suspense", "Orders whose money is in suspense, oldest first"), s.getSuspense)
	huma.Register(api, operation("verify-ledger", "/ledger/chain", "Walk the hash chain and name its first broken link"), s.getChain)
	correct := operation("correct-journal", "/ledger/corrections", "Turn a journal around with a new one")
	correct.Method, correct.DefaultStatus = http.MethodPost, http.StatusCreated
	huma.Register(api, correct, s.correct)
	trade.RegisterStory(api, s.Deps, Name)
}

// AccountSum is an account's totals in one currency, in minor units.
type AccountSum struct {
	Account  string `json:"account,omitempty"`
	Currency string `json:"currency"`
	Debit    int64  `json:"debit"`
	Credit   int64  `json:"credit"`
	Balance  int64  `json:"balance" db:"-" doc:"debit - credit"`
}

// Trial is the trial balance.
type Trial struct {
	Balanced bool         `json:"balanced" doc:"debits equal credits in every currency"`
	Totals   []AccountSum `json:"totals" doc:"of each currency"`
	Accounts []AccountSum `json:"accounts"`
}

// TrialBalance sums all postings.
func (s *Service) TrialBalance(ctx context.Context, tx convergo.Tx) (Trial, error) {
	t := Trial{Balanced: true, Totals: []AccountSum{}, Accounts: []AccountSum{}}
	if err := sqlscan.Select(ctx, tx, &t.Accounts, s.sql.Get("TrialBalance")); err != nil {
		return t, fmt.Errorf("trial balance: %w", err)
	}
	index := map[string]int{}
	for i, a := range t.Accounts {
		t.Accounts[i].Balance = a.Debit - a.Credit
		k, ok := index[a.Currency]
		if !ok {
			k = len(t.Totals)
			index[a.Currency] = k
			t.Totals = append(t.Totals, AccountSum{Currency: a.Currency})
		}
		total := &t.Totals[k]
		total.Debit, total.Credit = total.Debit+a.Debit, total.Credit+a.Credit
		total.Balance = total.Debit - total.Credit
	}
	for _, total := range t.Totals {
		t.Balanced = t.Balanced && total.Balance == 0
	}
	return t, nil
}

// view runs a read for the operator.
func (s *Service) view(ctx context.Context, fn func(ctx context.Context, tx convergo.Tx) error) error {
	if err := trade.RequireOperator(ctx); err != nil {
		return err
	}
	return s.DB.View(ctx, fn)
}

func (s *Service) getTrial(ctx context.Context, _ *struct{}) (*struct{ Body Trial }, error) {
	out := &struct{ Body Trial }{}
	return out, s.view(ctx, func(ctx context.Context, tx convergo.Tx) (err error) {
		out.Body, err = s.TrialBalance(ctx, tx)
		return err
	})
}

func (s *Service) getChain(ctx context.Context, _ *struct{}) (*struct{ Body Chain }, error) {
	out := &struct{ Body Chain }{}
	return out, s.view(ctx, func(ctx context.Context, tx convergo.Tx) (err error) {
		out.Body, err = s.Verify(ctx, tx)
		return err
	})
}

type orderOutput struct {
	Body struct {
		Journals []Journal `json:"journals"`
	}
}

func (s *Service) getOrder(ctx context.Context, in *struct {
	OrderNo string `path:"order_no" maxLength:"64"`
}) (*orderOutput, error) {
	out := &orderOutput{}
	out.Body.Journals = []Journal{}
	return out, s.view(ctx, func(ctx context.Context, tx convergo.Tx) error {
		journals, err := s.journals(ctx, tx, "JournalsOfOrder", in.OrderNo)
		if err != nil {
			return err
		}
		for _, j := range journals {
			rows, err := s.postings(ctx, tx, "PostingsOfJournal", j.Key)
			if err != nil {
				return err
			}
			for _, r := range rows {
				j.Postings = append(j.Postings, r.posting())
			}
			out.Body.Journals = append(out.Body.Journals, j)
		}
		return nil
	})
}

// AccountPosting is a posting as an account shows it.
type AccountPosting struct {
	Seq        int64     `json:"seq" doc:"of the journal"`
	JournalKey string    `json:"journal_key"`
	LineNo     int64     `json:"line_no"`
	OrderNo    string    `json:"order_no,omitempty"`
	Currency   string    `json:"currency"`
	Debit      int64     `json:"debit"`
	Credit     int64     `json:"credit"`
	At         time.Time `json:"at"`
}

type accountOutput struct {
	Body struct {
		Account  string           `json:"account"`
		Balances []AccountSum     `json:"balances" doc:"per currency, of all postings"`
		Postings []AccountPosting `json:"postings" doc:"oldest first"`
		Next     int64            `json:"next,omitempty" doc:"pass it as after to get the next page"`
	}
}

func (s *Service) getAccount(ctx context.Context, in *struct {
	Account string `path:"account" maxLength:"100"`
	After   int64  `query:"after" doc:"seq of the journal after which the page starts"`
	Limit   int    `query:"limit" default:"200" minimum:"1" maximum:"200"`
}) (*accountOutput, error) {
	out := &accountOutput{}
	out.Body.Account, out.Body.Balances, out.Body.Postings = in.Account, []AccountSum{}, []AccountPosting{}
	return out, s.view(ctx, func(ctx context.Context, tx convergo.Tx) error {
		if err := sqlscan.Select(ctx, tx, &out.Body.Balances, s.sql.Get("BalanceOf"), in.Account); err != nil {
			return fmt.Errorf("balance of %s: %w", in.Account, err)
		}
		for i, b := range out.Body.Balances {
			out.Body.Balances[i].Balance = b.Debit - b.Credit
		}
		var rows []struct {
			JournalKey, OrderNo, Currency  string
			Seq, LineNo, Debit, Credit, At int64
		}
		if err := sqlscan.Select(ctx, tx, &rows, s.sql.Get("PostingsOfAccount"), in.Account, in.After, in.Limit); err != nil {
			return fmt.Errorf("postings of %s: %w", in.Account, err)
		}
		for _, r := range rows {
			out.Body.Postings = append(out.Body.Postings,
				AccountPosting{r.Seq, r.JournalKey, r.LineNo, r.OrderNo, r.Currency, r.Debit, r.Credit, convergo.FromMicros(r.At)})
		}
		if len(rows) == in.Limit {
			out.Body.Next = rows[len(rows)-1].Seq
		}
		return nil
	})
}

// Open is money of an order in suspense: received and not yet an order's (negative) or sold and not yet received (positive).
type Open struct {
	OrderNo  string    `json:"order_no"` // empty for money that fits no order
	Currency string    `json:"currency"`
	Balance  int64     `json:"balance" doc:"debit - credit"`
	Since    time.Time `json:"since" doc:"first posting"`
}

type suspenseOutput struct {
	Body struct {
		Open []Open `json:"open"`
	}
}

func (s *Service) getSuspense(ctx context.Context, in *struct {
	Limit int `query:"limit" default:"200" minimum:"1" maximum:"1000"`
}) (*suspenseOutput, error) {
	out := &suspenseOutput{}
	out.Body.Open = []Open{}
	return out, s.view(ctx, func(ctx context.Context, tx convergo.Tx) error {
		var rows []struct {
			OrderNo, Currency string
			Balance, Since    int64
		}
		if err := sqlscan.Select(ctx, tx, &rows, s.sql.Get("SuspenseByOrder"), in.Limit); err != nil {
			return fmt.Errorf("suspense: %w", err)
		}
		for _, r := range rows {
			out.Body.Open = append(out.Body.Open, Open{r.OrderNo, r.Currency, r.Balance, convergo.FromMicros(r.Since)})
		}
		return nil
	})
}

// Correction is the body of POST /ledger/corrections.
type Correction struct {
	JournalKey string `json:"journal_key" minLength:"1" maxLength:"255" doc:"the journal to turn around, for example ORDER_PAID:O-1"`
	Reason     string `json:"reason" minLength:"1" maxLength:"1000"`
}

func (s *Service) correct(ctx context.Context, in *struct{ Body Correction }) (*struct{ Body Journal }, error) {
	if err := trade.RequireOperator(ctx); err != nil {
		return nil, err
	}
	if len(in.Body.Reason) == 0 || len(in.Body.Reason) > maxReason {
		return nil, trade.Invalid("body.reason", fmt.Sprintf("the reason has %d bytes, not 1 to %d", len(in.Body.Reason), maxReason),
			"say why in fewer words")
	}
	who, _ := trade.PrincipalOf(ctx)
	made, err := s.Correct(ctx, trade.TxOf(ctx), in.Body.JournalKey, in.Body.Reason, trade.RequestKey(ctx), who.String())
	if err != nil {
		return nil, err
	}
	return &struct{ Body Journal }{*made}, nil
}
