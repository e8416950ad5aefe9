package coupon_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/coupon"
	"github.com/convergo/convergo/trade/tradetest"
)

func TestCaseB42AOneTimeCouponIsUsedOnceByFiveOrdersAtOnce(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.create(terms("C-32", 1, 1)))
		var wait sync.WaitGroup
		for i := range 5 {
			wait.Go(func() {
				no := fmt.Sprintf("O-%d", i)
				if err := s.deliver(trade.OrderCreated, no, placed(no, "ada", "C-32")); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		winner := ""
		for i := range 5 {
			no := fmt.Sprintf("O-%d", i)
			switch types, last := s.answers(t, no); {
			case slices.Equal(types, []string{trade.CouponLocked}) && last.Amount == 1000 && winner == "":
				winner = no
			case slices.Equal(types, []string{trade.CouponRejected}):
			default:
				t.Errorf("%s was told %v, amount %d", no, types, last.Amount)
			}
		}
		for range 2 {
			s.must(t, s.deliver(trade.OrderCanceled, winner, canceled(winner, "ada", "C-32")))
		}
		if locked, redeemed := s.counted(t, "C-32"); locked != 0 || redeemed != 0 {
			t.Errorf("%d locked, %d redeemed after the cancellation", locked, redeemed)
		}
		for i, want := range []string{trade.CouponLocked, trade.CouponRejected} {
			no := fmt.Sprintf("again-%d", i)
			s.must(t, s.deliver(trade.OrderCreated, no, placed(no, "ada", "C-32")))
			if types, _ := s.answers(t, no); !slices.Equal(types, []string{want}) {
				t.Errorf("%s was told %v; the coupon is usable exactly once more", no, types)
			}
		}
	})
}

func TestReport19ACouponIsNeverUsedAboveItsLimit(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.create(terms("C-3", 3, 1)))
		var wait sync.WaitGroup
		for i := range 20 {
			wait.Go(func() {
				no, user := fmt.Sprintf("O-%d", i), fmt.Sprintf("user-%d", i)
				if err := s.deliver(trade.OrderCreated, no, placed(no, user, "C-3")); err != nil {
					t.Error(err)
				}
				err := s.deliver(trade.OrderPaid, no, paid(no, user, "C-3"))
				if err != nil && convergo.VerdictOf(err) != convergo.Park { // 17 of them were refused their coupon
					t.Error(err)
				}
			})
		}
		wait.Wait()
		if locked, redeemed := s.counted(t, "C-3"); locked != 0 || redeemed != 3 {
			t.Errorf("%d locked, %d redeemed", locked, redeemed)
		}
	})
}

func TestReport20TheLimitCountsReservationsNotFinishedOrders(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.create(terms("C-1", 1, 1)))
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", "ada", "C-1")))
		s.must(t, s.deliver(trade.OrderCreated, "O-2", placed("O-2", "bob", "C-1")))
		if _, last := s.answers(t, "O-2"); last.Reason != "C-1 is used up: all 1 uses are taken" {
			t.Errorf("the second order was told %q before the first one was paid", last.Reason)
		}
	})
}

func TestReport21AnOrderRecognizesItsOwnEarlierUse(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.create(terms("C-1", 1, 1)))
		var wait sync.WaitGroup
		for range 10 {
			wait.Go(func() {
				err := tradetest.Again(func() error { return s.deliver(trade.OrderCreated, "O-1", placed("O-1", "ada", "C-1")) })
				if err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		if types, _ := s.answers(t, "O-1"); !slices.Equal(types, []string{trade.CouponLocked}) {
			t.Errorf("told %v", types)
		}
		for range 3 {
			s.must(t, s.deliver(trade.OrderPaid, "O-1", paid("O-1", "ada", "C-1")))
		}
		if locked, redeemed := s.counted(t, "C-1"); locked != 0 || redeemed != 1 {
			t.Errorf("%d locked, %d redeemed", locked, redeemed)
		}
	})
}

func TestReport22ACancellationGivesBackTheUseOfItsOwnOrder(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.create(terms("C-2", 2, 2)))
		for _, no := range []string{"O-1", "O-2", "O-3"} {
			s.must(t, s.deliver(trade.OrderCreated, no, placed(no, "ada", "C-2")))
		}
		s.must(t, s.deliver(trade.OrderCanceled, "O-3", canceled("O-3", "ada", "C-2"))) // it was refused: it owns no use
		if locked, _ := s.counted(t, "C-2"); locked != 2 {
			t.Errorf("%d locked after the cancellation of an order without a use", locked)
		}
		s.must(t, s.deliver(trade.OrderCanceled, "O-1", canceled("O-1", "ada", "C-2")))
		if locked, _ := s.counted(t, "C-2"); locked != 1 {
			t.Errorf("%d locked", locked)
		}
		if types, _ := s.answers(t, "O-1"); !slices.Equal(types, []string{trade.CouponLocked, trade.CouponReturned}) {
			t.Errorf("told %v", types)
		}
		n := s.Int("SELECT COUNT(*) FROM effect WHERE effect_key = 'COUPON_RELEASE:order:O-1:ada' AND reverses = 'COUPON_LOCK:order:O-1:ada'")
		if n != 1 {
			t.Errorf("%d effects release the lock", n)
		}
	})
}

func TestAFullRefundGivesTheUseBackAndAPartialOneDoesNot(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.create(terms("C-1", 1, 1)))
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", "ada", "C-1")))
		early := s.deliver(trade.OrderRefunded, "O-1", refund("O-1", "ada", "C-1", true))
		if err := early; err == nil || convergo.VerdictOf(err) != convergo.Again {
			t.Errorf("a refund before the payment was applied: %v, want a later attempt", err)
		}
		s.must(t, s.deliver(trade.OrderPaid, "O-1", paid("O-1", "ada", "C-1")))
		s.must(t, s.deliver(trade.OrderRefunded, "O-1", refund("O-1", "ada", "C-1", false)))
		if _, redeemed := s.counted(t, "C-1"); redeemed != 1 {
			t.Errorf("%d redeemed after a partial refund", redeemed)
		}
		for range 2 {
			s.must(t, s.deliver(trade.OrderRefunded, "O-1", refund("O-1", "ada", "C-1", true)))
		}
		if locked, redeemed := s.counted(t, "C-1"); locked != 0 || redeemed != 0 {
			t.Errorf("%d locked, %d redeemed after the full refund", locked, redeemed)
		}
		s.Clock.Advance(2 * time.Hour)
		s.must(t, s.deliver(trade.OrderCreated, "O-2", placed("O-2", "ada", "C-1")))
		if _, last := s.answers(t, "O-2"); !strings.Contains(last.Reason, "expired") {
			t.Errorf("a coupon that came back after it expired: %q", last.Reason)
		}
	})
}

func TestACouponIsRefusedWithTheReason(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.create(terms("C-1", 9, 1)))
		later := terms("LATER", 9, 1)
		later.ValidFrom = later.ValidFrom.Add(time.Minute)
		s.must(t, s.create(later))
		yen, few := placed("O-2", "ada", "C-1"), placed("O-3", "ada", "C-1")
		yen.Currency, few.GoodsTotal = "JPY", 4999
		s.must(t, s.deliver(trade.OrderCreated, "used", placed("used", "bob", "C-1")))
		for want, p := range map[string]trade.OrderPlaced{
			"NONE is not known":                               placed("O-1", "ada", "NONE"),
			"C-1 is in CNY, the order in JPY":                 yen,
			"C-1 needs goods of 50.00 or more":                few,
			"LATER is valid from 2026-11-29T10:01:00Z":        placed("O-4", "ada", "LATER"),
			"C-1 may be used 1 times by one customer, and is": placed("O-5", "bob", "C-1"),
		} {
			s.must(t, s.deliver(trade.OrderCreated, p.OrderNo, p))
			if types, last := s.answers(t, p.OrderNo); !slices.Equal(types, []string{trade.CouponRejected}) || last.Reason != want {
				t.Errorf("told %v: %q, want %q", types, last.Reason, want)
			}
		}
		s.counted(t, "C-1")
	})
}

// An order that was placed in time must not lose its coupon to a backlog.
func TestTheCouponIsJudgedByWhenTheOrderWasPlaced(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.create(terms("C-1", 9, 9)))
		e := s.Event(trade.OrderCreated, "O-1", 1, placed("O-1", "ada", "C-1"))
		e.CreatedAt = s.Clock.Now().Add(time.Hour - time.Microsecond)
		s.Clock.Advance(3 * time.Hour)
		_, err := s.Deliver(e)
		s.must(t, err)
		if types, last := s.answers(t, "O-1"); !slices.Equal(types, []string{trade.CouponLocked}) {
			t.Errorf("told %v: %s", types, last.Reason)
		}
	})
}

func TestACancellationThatComesFirstLeavesATombstone(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.create(terms("C-1", 1, 1)))
		for range 2 {
			s.must(t, s.deliver(trade.OrderCanceled, "O-1", canceled("O-1", "ada", "C-1")))
		}
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", "ada", "C-1")))
		if locked, _ := s.counted(t, "C-1"); locked != 0 {
			t.Errorf("%d locked", locked)
		}
		if types, _ := s.answers(t, "O-1"); len(types) != 0 {
			t.Errorf("told %v", types)
		}
	})
}

func TestAPaymentForACouponThatWasGivenBackIsForAPerson(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.create(terms("C-1", 1, 1)))
		if err := s.deliver(trade.OrderPaid, "O-1", paid("O-1", "ada", "C-1")); err == nil || convergo.VerdictOf(err) != convergo.Again {
			t.Errorf("a use that is not known yet: %v, want a later attempt", err)
		}
		s.must(t, s.deliver(trade.OrderCanceled, "O-1", canceled("O-1", "ada", "C-1")))
		if err := s.deliver(trade.OrderPaid, "O-1", paid("O-1", "ada", "C-1")); convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("got %v", err)
		}
	})
}

func TestAnOrderWithoutACouponLeavesNoRow(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", "ada", "")))
		s.must(t, s.deliver(trade.OrderPaid, "O-1", paid("O-1", "ada", "")))
		s.must(t, s.deliver(trade.OrderRefunded, "O-1", refund("O-1", "ada", "", true)))
		s.must(t, s.deliver(trade.OrderCanceled, "O-2", canceled("O-2", "ada", "")))
		if n := s.Int("SELECT COUNT(*) FROM coupon_use"); n != 0 {
			t.Errorf("%d rows", n)
		}
	})
}

func TestTheMachineIsSound(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		if err := open(t, db).service.Machine().Validate(); err != nil {
			t.Error(err)
		}
	})
}

// Any order, repetition and mixture of the events of orders, also of stories that contradict themselves, keeps the counters within the
// limits and equal to the uses.
func TestCountersLimitsAndUsesNeverDrift(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		round := 0
		db.Check(t, func(r *rapid.T) {
			round++
			code := fmt.Sprintf("C-%d", round)
			c := terms(code, rapid.Int64Range(1, 3).Draw(r, "limit"), rapid.Int64Range(1, 2).Draw(r, "per customer"))
			c.ValidUntil = c.ValidUntil.Add(1000 * time.Hour)
			if err := s.create(c); err != nil {
				r.Fatal(err)
			}
			pool := stories(r, round, code)
			for step := 0; len(pool) > 0 && step < 150; step++ {
				i := rapid.IntRange(0, len(pool)-1).Draw(r, "next")
				err := s.deliver(pool[i].eventType, pool[i].orderNo, pool[i].payload)
				if err != nil && convergo.VerdictOf(err) == convergo.Again {
					continue // waits for another event
				}
				if !rapid.Bool().Draw(r, "twice") {
					pool = slices.Delete(pool, i, i+1)
				}
				if locked, redeemed := s.counted(r, code); locked+redeemed > c.TotalLimit {
					r.Fatalf("%d locked, %d redeemed of %d", locked, redeemed, c.TotalLimit)
				}
			}
		})
	})
}

type happening struct {
	eventType, orderNo string
	payload            any
}

func stories(r *rapid.T, round int, code string) (pool []happening) {
	for o := range rapid.IntRange(1, 5).Draw(r, "orders") {
		no, user := fmt.Sprintf("O%d-%d", round, o), rapid.SampledFrom([]string{"ada", "bob"}).Draw(r, "user")
		pool = append(pool, happening{trade.OrderCreated, no, placed(no, user, code)})
		if rapid.Bool().Draw(r, "canceled") {
			pool = append(pool, happening{trade.OrderCanceled, no, canceled(no, user, code)})
		}
		if rapid.Bool().Draw(r, "paid") {
			pool = append(pool, happening{trade.OrderPaid, no, paid(no, user, code)})
		}
		if rapid.Bool().Draw(r, "refunded") {
			pool = append(pool, happening{trade.OrderRefunded, no, refund(no, user, code, true)})
		}
	}
	return pool
}

func TestTheOperatorMakesACouponOnce(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		for range 2 {
			made := s.Post(tradetest.Operator(), "/coupons", terms("C-1", 5, 1))
			if got := tradetest.Into[coupon.Coupon](t, made); made.Status != 201 || got.Terms != terms("C-1", 5, 1) {
				t.Errorf("%d %+v", made.Status, got)
			}
		}
		if got := s.Post(tradetest.Operator(), "/coupons", terms("C-1", 6, 1)); got.Status != 409 || got.Problem().Field != "body.code" {
			t.Errorf("other terms under its code: %d %s", got.Status, got.Body)
		}
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", "ada", "C-1")))
		if got := tradetest.Into[coupon.Coupon](t, s.Get(tradetest.User("ada"), "/coupons/C-1")); got.Locked != 1 || got.TotalLimit != 5 {
			t.Errorf("%+v", got)
		}
		if got := s.Get(tradetest.User("ada"), "/coupons/C-9"); got.Status != 404 {
			t.Errorf("an unknown coupon: %d", got.Status)
		}
		story := tradetest.Into[trade.StoryAnswer](t, s.Get(tradetest.Operator(), "/coupon/story/O-1"))
		if len(story.Entries) != 3 { // the transition, the effect, the event
			t.Errorf("%+v", story)
		}
	})
}

func TestWhatIsWrongWithACouponIsSaid(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		for field, change := range map[string]func(*coupon.Terms){
			"body.code":           func(c *coupon.Terms) { c.Code = "C 1" },
			"body.face_value":     func(c *coupon.Terms) { c.FaceValue = 0 },
			"body.currency":       func(c *coupon.Terms) { c.Currency = "XXX" },
			"body.minimum_spend":  func(c *coupon.Terms) { c.MinimumSpend = -1 },
			"body.total_limit":    func(c *coupon.Terms) { c.TotalLimit = 0 },
			"body.per_user_limit": func(c *coupon.Terms) { c.PerUserLimit = -1 },
			"body.valid_until":    func(c *coupon.Terms) { c.ValidUntil = c.ValidFrom },
		} {
			c := terms("C-1", 5, 1)
			change(&c)
			got := s.Post(tradetest.Operator(), "/coupons", c)
			if p := got.Problem(); got.Status != 422 || p.Field != field || p.Remedy == "" {
				t.Errorf("%s: %d %+v", field, got.Status, p)
			}
		}
		if got := s.Post(tradetest.User("ada"), "/coupons", terms("C-1", 5, 1)); got.Status != 403 {
			t.Errorf("a user makes a coupon: %d", got.Status)
		}
		if n := s.Int("SELECT COUNT(*) FROM coupon"); n != 0 {
			t.Errorf("%d coupons", n)
		}
		var problem *trade.Problem
		s.must(t, s.create(terms("C-1", 5, 1)))
		if err := s.create(terms("C-1", 5, 2)); !errors.As(err, &problem) {
			t.Errorf("got %v", err)
		}
	})
}
