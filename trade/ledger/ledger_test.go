package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/ledger"
	"github.com/convergo/convergo/trade/tradetest"
)

func TestASaleIsBookedAtListPriceWithWhoPaidIt(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.tell(t, sale("O-1"))
		for account, want := range map[string]int64{
			"channel:acme": 8500, ledger.Suspense: 0, ledger.Revenue: -10000, ledger.CouponExpense: 1000,
			ledger.PointsLiability: 500 - 85, ledger.PointsExpense: 85,
		} {
			if got := s.balance(account); got != want {
				t.Errorf("%s is %d, want %d", account, got, want)
			}
		}
		if b := s.trial(t); !b.Balanced || len(b.Totals) != 1 || b.Totals[0].Debit != 8500+10000+85 {
			t.Errorf("%+v", b)
		}
	})
}

func TestAFullRefundBringsEveryAccountBack(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.tell(t, sale("O-1"), back("O-1"))
		for _, a := range s.trial(t).Accounts {
			if a.Balance != 0 {
				t.Errorf("%s is %d", a.Account, a.Balance)
			}
		}
		if n := s.Int("SELECT COUNT(*) FROM journal"); n != 6 {
			t.Errorf("%d journals", n)
		}
	})
}

// Reports 7 to 10: money that is nobody's order's is kept apart, seen and given back.
func TestReport08StrayMoneyPassesThroughSuspense(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		for _, class := range []string{trade.Late, trade.Second, trade.WrongAmount, trade.UnknownOrder} {
			t.Run(class, func(t *testing.T) {
				s := open(t, db)
				story := stray("O-1", class)
				s.tell(t, story[:1])
				open := tradetest.Into[struct{ Open []ledger.Open }](t, s.Get(tradetest.Operator(), "/ledger/suspense"))
				if len(open.Open) != 1 || open.Open[0].OrderNo != "O-1" || open.Open[0].Balance != -8500 || s.balance("channel:acme") != 8500 {
					t.Errorf("%s: %+v", class, open)
				}
				s.tell(t, story[1:])
				open = tradetest.Into[struct{ Open []ledger.Open }](t, s.Get(tradetest.Operator(), "/ledger/suspense"))
				if len(open.Open) != 0 || s.balance(ledger.Suspense) != 0 || s.balance("channel:acme") != 0 {
					t.Errorf("%s: %+v", class, open)
				}
			})
		}
	})
}

func TestANoticeThatMovedNoMoneyOfOursIsNotBooked(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.tell(t, stray("O-1", trade.Ignored)[:1], stray("O-2", trade.WrongMerchant)[:1])
		if n := s.Int("SELECT COUNT(*) FROM journal"); n != 0 {
			t.Errorf("%d journals", n)
		}
	})
}

func TestAJournalIsWrittenOnceHoweverOftenItIsTold(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		var wait sync.WaitGroup
		for range 10 {
			for _, h := range slices.Concat(sale("O-1"), back("O-1")) {
				wait.Go(func() {
					if err := s.deliver(h); err != nil {
						t.Error(err)
					}
				})
			}
		}
		wait.Wait()
		if n := s.Int("SELECT COUNT(*) FROM journal"); n != 6 {
			t.Errorf("%d journals", n)
		}
		if n := s.Int("SELECT COUNT(*) FROM effect"); n != 6 {
			t.Errorf("%d effects", n)
		}
		if c := s.verify(t); !c.Intact || c.Journals != 6 {
			t.Errorf("%+v", c)
		}
		other := sale("O-1")[0]
		money := other.payload.(trade.Receipt)
		money.Amount++
		other.payload = money
		if err := s.deliver(other); convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("another amount under the same key: %v", err)
		}
	})
}

func TestWhatDoesNotBalanceIsNotBooked(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		for name, p := range map[string]trade.Paid{
			"a fen short":         {OrderNo: "O-1", Currency: "CNY", GoodsTotal: 10000, CouponTotal: 1000, PointsSpent: 500, Payable: 8499},
			"a negative share":    {OrderNo: "O-1", Currency: "CNY", GoodsTotal: 10000, CouponTotal: -500, PointsSpent: 500, Payable: 10000},
			"an unknown currency": {OrderNo: "O-1", Currency: "XXX", GoodsTotal: 10000, Payable: 10000},
		} {
			if err := s.deliver(happening{trade.OrderPaid, "O-1", p}); convergo.VerdictOf(err) != convergo.Park {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := s.Int("SELECT COUNT(*) FROM journal") + s.Int("SELECT COUNT(*) FROM posting") + s.Int("SELECT seq FROM ledger_head"); n != 0 {
			t.Errorf("%d rows", n)
		}
		err := s.Store.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
			_, err := s.service.Post(ctx, tx, ledger.Journal{Key: "X:1", Kind: "X", Postings: []ledger.Posting{
				{Account: "a", Currency: "CNY", Debit: 5}, {Account: "b", Currency: "USD", Credit: 5},
			}})
			return err
		})
		if !errors.Is(err, ledger.ErrUnbalanced) {
			t.Errorf("debits and credits of two currencies: %v", err)
		}
	})
}

func TestARefundThatTakesNoPointsBackHasAJournalAllTheSame(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.tell(t, []happening{{trade.PointsReversed, "O-1", trade.Answer{OrderNo: "O-1", Currency: "CNY", RefundNo: "R-1"}}})
		if n := s.Int("SELECT COUNT(*) FROM journal WHERE journal_key = 'POINT_REVERSAL:R-1'"); n != 1 {
			t.Errorf("%d journals", n)
		}
		if c := s.verify(t); !c.Intact {
			t.Errorf("%+v", c)
		}
	})
}

func TestTheVerifierNamesTheFirstBrokenLink(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		const two = " WHERE journal_key = 'ORDER_PAID:O-2'" // the fifth of nine journals
		for name, c := range map[string]struct {
			damage []string
			seq    int64
			says   string
		}{
			"an amount changed":        {[]string{"UPDATE posting SET debit = debit + 1" + two + " AND line_no = 1"}, 5, "was changed"},
			"both sides changed":       {[]string{"UPDATE posting SET debit = debit * 2, credit = credit * 2" + two}, 5, "was changed"},
			"an account changed":       {[]string{"UPDATE posting SET account = 'mine'" + two + " AND line_no = 1"}, 5, "was changed"},
			"a time changed":           {[]string{"UPDATE posting SET at = at + 1" + two + " AND line_no = 2"}, 5, "posting 2 was changed"},
			"a posting removed":        {[]string{"DELETE FROM posting" + two + " AND line_no = 2"}, 5, "is missing"},
			"the last posting removed": {[]string{"DELETE FROM posting" + two + " AND line_no = 4"}, 5, "was changed"},
			"a posting added": {[]string{
				"INSERT INTO posting SELECT journal_key, 5, 'mine', 'CNY', 5, 0, order_no, at FROM posting" + two + " AND line_no = 1",
			}, 5, "was changed"},
			"a reason changed":  {[]string{"UPDATE journal SET reason = 'because' WHERE seq = 6"}, 6, "was changed"},
			"a journal removed": {[]string{"DELETE FROM posting" + two, "DELETE FROM journal" + two}, 6, "1 journals are missing"},
			"two journals exchanged": {[]string{
				"UPDATE journal SET seq = 99 WHERE seq = 5", "UPDATE journal SET seq = 5 WHERE seq = 6", "UPDATE journal SET seq = 6 WHERE seq = 99",
			}, 5, "does not name the hash of journal 4"},
			"the end cut off": {[]string{
				"DELETE FROM posting WHERE journal_key IN (SELECT journal_key FROM journal WHERE seq > 7)", "DELETE FROM journal WHERE seq > 7",
			}, 8, "ended at 9 and ends at 7"},
			"a posting of no journal": {[]string{"INSERT INTO posting VALUES ('GHOST:1', 1, 'mine', 'CNY', 5, 0, '', 1)"}, 0, "no journal"},
		} {
			t.Run(name, func(t *testing.T) {
				s := open(t, db)
				s.tell(t, sale("O-1"), sale("O-2"), sale("O-3"))
				if c := s.verify(t); !c.Intact || c.Journals != 9 {
					t.Fatalf("before the damage: %+v", c)
				}
				s.damage(c.damage...)
				if got := s.verify(t); got.Intact || got.Seq != c.seq || !strings.Contains(got.Broken, c.says) {
					t.Errorf("found %+v, want journal %d, %q", got, c.seq, c.says)
				}
			})
		}
	})
}

// The checker, and whoever keeps a hash on paper, computes it from the layout in chain.go; this value was made by another program.
func TestTheHashIsOverTheDocumentedBytes(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.tell(t, sale("O-1"))
		order := tradetest.Into[struct{ Journals []ledger.Journal }](t, s.Get(tradetest.Operator(), "/ledger/orders/O-1"))
		const want = "10484a9d2996d74ac22c1dc2bc945582df317df28a85d09bb84e1072e5ca3b3b"
		if got := order.Journals[0]; got.Hash != want || got.PrevHash != "" || order.Journals[1].PrevHash != want {
			t.Errorf("%+v", got)
		}
	})
}

func TestTheVerifierReadsMoreThanOnePage(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		for i := range 350 {
			s.tell(t, stray(fmt.Sprintf("O-%d", i), trade.Late))
		}
		if c := s.verify(t); !c.Intact || c.Journals != 700 {
			t.Errorf("%+v", c)
		}
		s.damage("UPDATE posting SET credit = 1 WHERE journal_key = 'RECEIPT:acme:S-O-300' AND credit > 0")
		if c := s.verify(t); c.Intact || c.Key != "RECEIPT:acme:S-O-300" || c.Seq != 601 {
			t.Errorf("%+v", c)
		}
	})
}

func TestNoStatementChangesAJournal(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		changes := regexp.MustCompile(`(?i)\b(UPDATE|DELETE\s+FROM|REPLACE\s+INTO)\s+(journal|posting)\b`)
		for name, text := range open(t, db).service.Statements() {
			if changes.MatchString(text) {
				t.Errorf("%s: %s", name, text)
			}
		}
	})
}

func TestACorrectionTurnsAJournalAroundOnce(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.tell(t, sale("O-1"))
		ask := ledger.Correction{JournalKey: "ORDER_PAID:O-1", Reason: "posted for a test"}
		for range 2 {
			got := s.Post(tradetest.Operator(), "/ledger/corrections", ask)
			made := tradetest.Into[ledger.Journal](t, got)
			if got.Status != 201 || made.Key != "CORRECTION:ORDER_PAID:O-1" || made.Corrects != ask.JournalKey || made.Actor != "operator:operator" {
				t.Errorf("%d %+v", got.Status, made)
			}
		}
		if s.balance(ledger.Revenue) != 0 || s.balance(ledger.Suspense) != -8500 || s.balance(ledger.PointsExpense) != 85 {
			t.Errorf("revenue %d, suspense %d", s.balance(ledger.Revenue), s.balance(ledger.Suspense))
		}
		ask.Reason = "another one"
		if got := s.Post(tradetest.Operator(), "/ledger/corrections", ask); got.Status != 409 || got.Problem().Field != "body.journal_key" {
			t.Errorf("a second correction: %d %s", got.Status, got.Body)
		}
		ask.JournalKey = "ORDER_PAID:O-9"
		if got := s.Post(tradetest.Operator(), "/ledger/corrections", ask); got.Status != 404 {
			t.Errorf("of no journal: %d %s", got.Status, got.Body)
		}
		if got := s.Post(tradetest.User("ada"), "/ledger/corrections", ask); got.Status != 403 {
			t.Errorf("by a user: %d", got.Status)
		}
		if c := s.verify(t); !c.Intact || c.Journals != 4 || !s.trial(t).Balanced {
			t.Errorf("%+v", c)
		}
	})
}

func TestTheOperatorReadsTheBooks(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.tell(t, sale("O-1"), sale("O-2"))
		trial := tradetest.Into[ledger.Trial](t, s.Get(tradetest.Operator(), "/ledger/trial-balance"))
		if !trial.Balanced || len(trial.Accounts) != 6 {
			t.Errorf("%+v", trial)
		}
		order := tradetest.Into[struct{ Journals []ledger.Journal }](t, s.Get(tradetest.Operator(), "/ledger/orders/O-2"))
		if len(order.Journals) != 3 || order.Journals[1].Key != "ORDER_PAID:O-2" || len(order.Journals[1].Postings) != 4 {
			t.Errorf("%+v", order)
		}
		account := tradetest.Into[struct {
			Balances []ledger.AccountSum
			Postings []ledger.AccountPosting
			Next     int64
		}](t, s.Get(tradetest.Operator(), "/ledger/accounts/channel:acme?limit=1"))
		if len(account.Balances) != 1 || account.Balances[0].Balance != 17000 || len(account.Postings) != 1 || account.Next != 1 {
			t.Errorf("%+v", account)
		}
		if c := tradetest.Into[ledger.Chain](t, s.Get(tradetest.Operator(), "/ledger/chain")); !c.Intact || c.Journals != 6 {
			t.Errorf("%+v", c)
		}
		for _, path := range []string{"trial-balance", "orders/O-2", "accounts/revenue", "chain", "suspense"} {
			if got := s.Get(tradetest.User("ada"), "/ledger/"+path); got.Status != 403 {
				t.Errorf("a user reads %s: %d", path, got.Status)
			}
		}
	})
}

// Whatever the order, the repetition and the mixture of the events: debits equal credits at any moment, and suspense is 0 when
// all stories have ended.
func TestTheBooksBalanceAtAnyMomentAndSuspenseIsEmptyAtTheEnd(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		round := 0
		db.Check(t, func(r *rapid.T) {
			round++
			var pool []happening
			for o := range rapid.IntRange(1, 4).Draw(r, "orders") {
				no := fmt.Sprintf("O%d-%d", round, o)
				pool = append(pool, sale(no)...)
				if rapid.Bool().Draw(r, "refunded") {
					pool = append(pool, back(no)...)
				}
				if rapid.Bool().Draw(r, "stray money") {
					pool = append(pool, stray(no, trade.Second)...)
				}
			}
			pool = append(pool, rapid.SliceOfN(rapid.SampledFrom(pool), 0, 10).Draw(r, "repeated")...)
			moment := rapid.IntRange(0, len(pool)-1).Draw(r, "moment")
			for i, h := range rapid.Permutation(pool).Draw(r, "order") {
				if err := s.deliver(h); err != nil {
					r.Fatal(err)
				}
				if i == moment && !s.trial(r).Balanced {
					r.Fatal("the books do not balance")
				}
			}
			if left := s.balance(ledger.Suspense); left != 0 {
				r.Fatalf("suspense is %d", left)
			}
		})
		if c := s.verify(t); !c.Intact {
			t.Errorf("%+v", c)
		}
	})
}
