package points_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/points"
	"github.com/convergo/convergo/trade/tradetest"
)

func TestCaseB45PointsTakenBackByPartsSumToTheWhole(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		for _, c := range []struct {
			cash  int64
			parts []int64
			taken []int64
		}{
			{9000, []int64{3000, 3000, 3000}, []int64{30, 30, 30}}, // three lines of 3333, 3333, 3334 less a coupon of 1000
			{1000, []int64{333, 333, 334}, []int64{3, 3, 4}},       // one line of three pieces
			{100, []int64{50, 50}, []int64{0, 1}},                  // one point is not halved
			{99, []int64{33, 33, 33}, []int64{0, 0, 1}},            // less than a unit earns one all the same
		} {
			t.Run(fmt.Sprint(c.parts), func(t *testing.T) {
				s := open(t, db)
				s.must(t, s.deliver(trade.OrderPaid, "O-1", paid("O-1", c.cash, 0)))
				soFar, left := int64(0), s.Int("SELECT balance FROM points_account")
				for i, part := range c.parts {
					soFar += part
					s.must(t, s.deliver(trade.OrderRefunded, "O-1", refund("O-1", fmt.Sprintf("R-%d", i), soFar, c.cash, 0)))
					left -= c.taken[i]
					s.wants(t, "ada", left, 0, 0)
				}
				s.wants(t, "ada", 0, 0, 0)
			})
		}
	})
}

func TestCaseB43AnOrderThatItsCouponPaysGivesItsPointsFree(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.grant("ada", 5000, "G-1"))
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", 5000)))
		s.wants(t, "ada", 5000, 5000, 0)
		s.must(t, s.deliver(trade.OrderPaid, "O-1", paid("O-1", 0, 0)))
		s.wants(t, "ada", 5001, 0, 0) // and every paid order earns a point
		s.must(t, s.deliver(trade.OrderRefunded, "O-1", refund("O-1", "R-1", 0, 0, 0)))
		s.wants(t, "ada", 5000, 0, 0)
	})
}

func TestAPointIsEarnedPerWholeUnitOfTheCurrency(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		for currency, want := range map[string]int64{"CNY": 12, "JPY": 1234, "KWD": 1} {
			t.Run(currency, func(t *testing.T) {
				s := open(t, db)
				p := paid("O-1", 1234, 0)
				p.Currency = currency
				s.must(t, s.deliver(trade.OrderPaid, "O-1", p))
				types, last := s.answers(t, "O-1")
				if !slices.Equal(types, []string{trade.PointsGranted}) || last.Points != want || last.Currency != currency {
					t.Errorf("told %v: %+v, want %d points", types, last, want)
				}
				s.wants(t, "ada", want, 0, 0)
			})
		}
		s, p := open(t, db), paid("O-1", 1234, 0)
		p.Currency = "XXX"
		if err := s.deliver(trade.OrderPaid, "O-1", p); convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("an unknown currency: %v", err)
		}
	})
}

func TestCaseB22ThePointsAndTheMarkAreOneTransaction(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		e := s.Event(trade.OrderPaid, "O-1", 1, paid("O-1", 5000, 0))
		e.MessageID, e.Key = "m-1", "OrderPaid:O-1:v1"
		died := errors.New("the process dies before the commit")
		apply := func(last error) (marked inbox.Marked) {
			err := s.Store.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) (err error) {
				if marked, err = s.Store.Mark(ctx, tx, points.Name, e, false, s.Clock.Now()); err != nil || marked != inbox.Fresh {
					return err
				}
				if err := s.service.Handlers()[e.Type](ctx, tx, e); err != nil {
					return err
				}
				return last
			})
			if !errors.Is(err, last) {
				t.Fatal(err)
			}
			return marked
		}
		apply(died)
		s.wants(t, "ada", 0, 0, 0)
		for _, table := range []string{"inbox_mark", "points_entry", "points_order", "effect", "outbox_event"} {
			if n := s.Int("SELECT COUNT(*) FROM " + table); n != 0 {
				t.Errorf("%d rows in %s of a transaction that never committed", n, table)
			}
		}
		if marked := apply(nil); marked != inbox.Fresh {
			t.Errorf("the redelivery is %d", marked)
		}
		s.wants(t, "ada", 50, 0, 0)
		if marked := apply(nil); marked != inbox.Duplicate {
			t.Errorf("the second redelivery is %d", marked)
		}
		s.wants(t, "ada", 50, 0, 0)
	})
}

func TestReport31PointsAreGrantedOnceAndTakenBackOnce(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		var wait sync.WaitGroup
		for range 10 {
			wait.Go(func() {
				err := tradetest.Again(func() error { return s.deliver(trade.OrderPaid, "O-1", paid("O-1", 9000, 0)) })
				if err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		s.wants(t, "ada", 90, 0, 0)
		if n := s.Int("SELECT COUNT(*) FROM effect WHERE effect_key = 'ORDER_POINT:O-1'"); n != 1 {
			t.Errorf("%d effects ORDER_POINT:O-1", n)
		}
		for range 3 {
			s.must(t, s.deliver(trade.OrderRefunded, "O-1", refund("O-1", "R-1", 4500, 9000, 0)))
		}
		s.wants(t, "ada", 45, 0, 0)
	})
}

func TestReport31TwoReversalsTakeTheSameInEitherOrder(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		for _, order := range [][]int{{0, 1}, {1, 0}} {
			t.Run(fmt.Sprint(order), func(t *testing.T) {
				s := open(t, db)
				s.must(t, s.deliver(trade.OrderPaid, "O-1", paid("O-1", 1000, 0)))
				refunds := []trade.Refund{refund("O-1", "R-1", 333, 1000, 0), refund("O-1", "R-2", 1000, 1000, 0)}
				for _, i := range order {
					s.must(t, s.deliver(trade.OrderRefunded, "O-1", refunds[i]))
				}
				s.wants(t, "ada", 0, 0, 0)
				if n := len(s.Events(trade.PointsReversed)); n != 2 {
					t.Errorf("%d reversals told", n)
				}
			})
		}
	})
}

func TestReport31PointsThatWereSpentBeforeTheyAreTakenBackAreDebt(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.deliver(trade.OrderPaid, "O-1", paid("O-1", 10000, 0)))
		s.must(t, s.deliver(trade.OrderCreated, "O-2", placed("O-2", 100)))
		s.must(t, s.deliver(trade.OrderPaid, "O-2", paid("O-2", 0, 100)))
		s.wants(t, "ada", 1, 0, 0)
		s.must(t, s.deliver(trade.OrderRefunded, "O-1", refund("O-1", "R-1", 10000, 10000, 0)))
		s.wants(t, "ada", 0, 0, 99)
		s.must(t, s.grant("ada", 30, "G-1"))
		s.wants(t, "ada", 0, 0, 69)
		s.must(t, s.deliver(trade.OrderCreated, "O-3", placed("O-3", 1)))
		types, last := s.answers(t, "O-3")
		if !slices.Equal(types, []string{trade.PointsRejected}) || last.Reason != "1 points wanted, 0 available" {
			t.Errorf("told %v: %q", types, last.Reason)
		}
		s.must(t, s.deliver(trade.OrderRefunded, "O-2", refund("O-2", "R-2", 0, 0, 100))) // the spent ones come back, the granted one goes
		s.wants(t, "ada", 30, 0, 0)
	})
}

func TestPointsThatACancellationFreesPayADebtFirst(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.deliver(trade.OrderPaid, "O-1", paid("O-1", 10000, 0)))
		s.must(t, s.deliver(trade.OrderCreated, "O-2", placed("O-2", 80)))
		s.must(t, s.deliver(trade.OrderRefunded, "O-1", refund("O-1", "R-1", 10000, 10000, 0)))
		s.wants(t, "ada", 80, 80, 80)
		s.must(t, s.deliver(trade.OrderCanceled, "O-2", canceled("O-2", 80)))
		s.wants(t, "ada", 0, 0, 0)
	})
}

func TestReport28LockedPointsAreNotAvailable(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.grant("ada", 100, "G-1"))
		var wait sync.WaitGroup
		for i := range 10 {
			wait.Go(func() {
				no := fmt.Sprintf("O-%d", i)
				if err := s.deliver(trade.OrderCreated, no, placed(no, 60)); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		s.wants(t, "ada", 100, 60, 0)
		if locked, rejected := len(s.Events(trade.PointsLocked)), len(s.Events(trade.PointsRejected)); locked != 1 || rejected != 9 {
			t.Errorf("%d locked, %d rejected", locked, rejected)
		}
		for i := range 10 {
			no := fmt.Sprintf("O-%d", i)
			types, _ := s.answers(t, no)
			err := s.deliver(trade.OrderPaid, no, paid(no, 100, 60))
			if types[0] == trade.PointsRejected && convergo.VerdictOf(err) != convergo.Park {
				t.Errorf("%s was refused its points and spends them: %v", no, err)
			}
			if types[0] == trade.PointsLocked && err != nil {
				t.Error(err)
			}
		}
		s.wants(t, "ada", 41, 0, 0)
	})
}

func TestReport06ConcurrentCancelsUnlockOnce(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.grant("ada", 100, "G-1"))
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", 30)))
		s.must(t, s.deliver(trade.OrderCreated, "O-2", placed("O-2", 20)))
		var wait sync.WaitGroup
		for range 20 {
			wait.Go(func() {
				if err := s.deliver(trade.OrderCanceled, "O-1", canceled("O-1", 30)); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		s.wants(t, "ada", 100, 20, 0)
		if n := s.Int("SELECT COUNT(*) FROM points_entry WHERE entry_key = 'POINT_UNLOCK:O-1'"); n != 1 {
			t.Errorf("%d entries", n)
		}
	})
}

func TestAnOrderSpendsWhatItUsedAndFreesTheRest(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.grant("ada", 100, "G-1"))
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", 80)))
		s.must(t, s.deliver(trade.OrderPaid, "O-1", paid("O-1", 500, 50)))
		s.wants(t, "ada", 55, 0, 0)
		if err := s.deliver(trade.OrderRefunded, "O-1", refund("O-1", "R-0", 500, 500, 51)); convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("more given back than was spent: %v", err)
		}
		s.must(t, s.deliver(trade.OrderRefunded, "O-1", refund("O-1", "R-1", 250, 500, 25)))
		s.wants(t, "ada", 78, 0, 0)
		s.must(t, s.deliver(trade.OrderRefunded, "O-1", refund("O-1", "R-2", 500, 500, 25)))
		s.wants(t, "ada", 100, 0, 0)
		if _, last := s.answers(t, "O-1"); last.Points != 3 || last.Amount != 25 || last.RefundNo != "R-2" {
			t.Errorf("the last answer is %+v", last)
		}
	})
}

func TestACancellationThatComesFirstLeavesATombstone(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.grant("ada", 100, "G-1"))
		for range 2 {
			s.must(t, s.deliver(trade.OrderCanceled, "O-1", canceled("O-1", 30)))
		}
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", 30)))
		s.wants(t, "ada", 100, 0, 0)
		if types, _ := s.answers(t, "O-1"); len(types) != 0 {
			t.Errorf("told %v", types)
		}
	})
}

func TestWhatIsEarlyWaitsAndWhatIsWrongIsForAPerson(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.grant("ada", 100, "G-1"))
		again := func(eventType string, payload any) {
			t.Helper()
			if err := s.deliver(eventType, "O-1", payload); err == nil || convergo.VerdictOf(err) != convergo.Again {
				t.Errorf("%s: %v, want a later attempt", eventType, err)
			}
		}
		park := func(eventType string, payload any) {
			t.Helper()
			if err := s.deliver(eventType, "O-1", payload); convergo.VerdictOf(err) != convergo.Park {
				t.Errorf("%s: %v, want a dead letter", eventType, err)
			}
		}
		again(trade.OrderPaid, paid("O-1", 0, 30))
		again(trade.OrderRefunded, refund("O-1", "R-1", 0, 0, 30))
		park(trade.OrderCreated, placed("O-1", -1))
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", 30)))
		again(trade.OrderRefunded, refund("O-1", "R-1", 0, 0, 30))
		park(trade.OrderPaid, paid("O-1", 0, 31))
		park(trade.OrderPaid, paid("O-1", -1, 30))
		s.must(t, s.deliver(trade.OrderPaid, "O-1", paid("O-1", 500, 30)))
		park(trade.OrderCanceled, canceled("O-1", 30))
		park(trade.OrderRefunded, refund("O-1", "R-1", 501, 500, 30))
		second := paid("O-1", 500, 30)
		second.Transaction = "T-second"
		park(trade.OrderPaid, second)
		s.wants(t, "ada", 75, 0, 0)
	})
}

func TestTheMachineIsSound(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		if err := open(t, db).service.Machine().Validate(); err != nil {
			t.Error(err)
		}
	})
}

// Any order, repetition and mixture of the events of orders, also of stories that contradict themselves: entries sum to balance and
// debt, locks to the orders' locks.
func TestEntriesAndBalanceNeverDrift(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		round := 0
		db.Check(t, func(r *rapid.T) {
			round++
			user := fmt.Sprintf("ada-%d", round)
			if err := s.grant(user, rapid.Int64Range(1, 60).Draw(r, "granted"), user); err != nil {
				r.Fatal(err)
			}
			pool := stories(r, user)
			for step := 0; len(pool) > 0 && step < 150; step++ {
				i := rapid.IntRange(0, len(pool)-1).Draw(r, "next")
				err := s.deliver(pool[i].eventType, pool[i].orderNo, pool[i].payload)
				if err != nil && convergo.VerdictOf(err) == convergo.Again {
					continue // waits for another event
				}
				if !rapid.Bool().Draw(r, "twice") {
					pool = slices.Delete(pool, i, i+1)
				}
				s.held(r, user)
			}
		})
	})
}

type happening struct {
	eventType, orderNo string
	payload            any
}

func stories(r *rapid.T, user string) (pool []happening) {
	for o := range rapid.IntRange(1, 4).Draw(r, "orders") {
		no := fmt.Sprintf("%s-O%d", user, o)
		spend := rapid.Int64Range(0, 40).Draw(r, "spend")
		spent := rapid.Int64Range(0, spend).Draw(r, "spent")
		cash := rapid.Int64Range(0, 5000).Draw(r, "cash")
		created, off, payment := placed(no, spend), canceled(no, spend), paid(no, cash, spent)
		created.UserID, off.UserID, payment.UserID = user, user, user
		pool = append(pool, happening{trade.OrderCreated, no, created})
		if rapid.Bool().Draw(r, "canceled") {
			pool = append(pool, happening{trade.OrderCanceled, no, off})
		}
		if rapid.Bool().Draw(r, "paid") {
			pool = append(pool, happening{trade.OrderPaid, no, payment})
		}
		if rapid.Bool().Draw(r, "refunded") {
			first := rapid.Int64Range(0, cash).Draw(r, "first part")
			back := rapid.Int64Range(0, spent).Draw(r, "first points")
			part := refund(no, no+"-R1", first, cash, back)
			part.Full = false
			rest := refund(no, no+"-R2", cash, cash, spent-back)
			pool = append(pool, happening{trade.OrderRefunded, no, part}, happening{trade.OrderRefunded, no, rest})
		}
	}
	return pool
}

func TestTheOperatorGrantsOnceAndTheOwnerLooks(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		for range 2 {
			made := s.Post(tradetest.Operator(), "/points/grants", points.Grant{User: "ada", Points: 30, Key: "G-1"})
			if got := tradetest.Into[points.Account](t, made); made.Status != 201 || got.Balance != 30 {
				t.Errorf("%d %+v", made.Status, got)
			}
		}
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", 10)))
		for _, who := range []trade.Principal{tradetest.User("ada"), tradetest.Operator()} {
			got := tradetest.Into[points.Account](t, s.Get(who, "/points/ada"))
			if got.Balance != 30 || got.Locked != 10 || got.Available != 20 || len(got.Entries) != 2 {
				t.Errorf("%+v", got)
			}
		}
		if got := s.Get(tradetest.User("bob"), "/points/ada"); got.Status != 403 {
			t.Errorf("another user looks: %d", got.Status)
		}
		if got := tradetest.Into[points.Account](t, s.Get(tradetest.User("bob"), "/points/bob")); got.Balance != 0 || got.Entries == nil {
			t.Errorf("one who never had a point: %+v", got)
		}
		story := tradetest.Into[trade.StoryAnswer](t, s.Get(tradetest.Operator(), "/points/story/O-1"))
		if len(story.Entries) != 3 { // the transition, the effect, the event
			t.Errorf("%+v", story)
		}
	})
}

func TestWhatIsWrongWithAGrantIsSaid(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.grant("ada", 30, "G-1"))
		for _, c := range []struct {
			who    trade.Principal
			body   string
			status int
			field  string
		}{
			{tradetest.User("ada"), `{"user":"ada","points":5,"key":"G-2"}`, 403, "header.Authorization"},
			{tradetest.Operator(), `{"user":"a da","points":5,"key":"G-2"}`, 422, "body.user"},
			{tradetest.Operator(), `{"user":"ada","points":0,"key":"G-2"}`, 422, "body.points"},
			{tradetest.Operator(), `{"user":"ada","points":5,"key":"G\n2"}`, 422, "body.key"},
			{tradetest.Operator(), `{"user":"ada","points":31,"key":"G-1"}`, 409, "body.key"},
			{tradetest.Operator(), `{"user":"bob","points":30,"key":"G-1"}`, 409, "body.key"},
		} {
			got := s.Post(c.who, "/points/grants", c.body)
			if p := got.Problem(); got.Status != c.status || p.Field != c.field || p.Remedy == "" {
				t.Errorf("%s by %s: %d %+v", c.body, c.who, got.Status, p)
			}
		}
		s.wants(t, "ada", 30, 0, 0)
	})
}
