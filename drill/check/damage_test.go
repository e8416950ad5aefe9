package check_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/convergo/convergo/drill/check"
)

// damage is done by plain SQL. pick finds the row to damage; its value is :k in do and must be named by the equation, or
// want when that is given.
type damage struct {
	name, equation, pick string
	do                   []string
	want                 string
}

// Titles of the equations, as the report shows them.
const (
	onePayment    = "paid orders have exactly one applied payment of the right amount"
	noMoney       = "unpaid and canceled orders keep no money"
	keeps         = "an order keeps what it cost less what it gave back"
	ended         = "every receipt came to its end"
	classified    = "every receipt is what its class says"
	sides         = "the payment side and the order agree"
	trades        = "no trade can take money for a finished order"
	bill          = "the channel's bill is our receipts, as multisets"
	refundBill    = "the channel's refunds are our refunds, as multisets"
	refunds       = "refunds of orders are refunds of payments"
	sums          = "an order's lines sum to the order, its refunds to its lines"
	wholly        = "an order is refunded when all of it came back"
	tokens        = "an order was placed once, with its own token"
	decided       = "the risk of every order was decided once"
	history       = "everything is in the state that its history says"
	changeCause   = "every change of state has a cause"
	orderStock    = "every order's stock is held, deducted, returned or free as its state says"
	flows         = "stock is the sum of its flows"
	received      = "stock received is sold, held or free"
	holds         = "every hold ends once"
	couponOrders  = "a coupon is used by exactly the orders that had it"
	couponCount   = "coupon counters are their uses, within the limits"
	granted       = "every paid order granted its points once"
	spent         = "points spent and locked are what the orders say"
	balance       = "a points balance is the sum of its rows"
	shipments     = "one shipment per paid order, one booking per shipment"
	told          = "customers were told once"
	balanced      = "every journal balances and the whole ledger balances"
	suspense      = "the suspense account is empty, for every order and every payment without one"
	totals        = "money paid is orders paid is ledger postings"
	journals      = "everything that moved money or points has its journal"
	postings      = "every posting is what the services say, as multisets"
	channelBooks  = "the channel account is receipts less refunds"
	effectRows    = "every effect has its row and every row its effect"
	compensations = "a compensation reverses one effect of its own order"
	effectCause   = "every effect has a cause"
	said          = "every change was told once"
	applied       = "every event was applied by every service that wants it"
	unwritten     = "nothing was applied that nobody wrote"
	waits         = "no event waits to be sent or applied"
	letters       = "no dead letter is open"
	calls         = "no call to the outside is left or was given up"
	asWritten     = "every event is as it was written and applied as it is"
	chain         = "the ledger's hash chain is whole"
)

// Rows that are damaged.
const (
	done       = `SELECT order_no FROM "order".orders WHERE status = 'COMPLETED' AND payable > 0 AND refund_count = 0 LIMIT 1`
	free       = `SELECT order_no FROM "order".orders WHERE status = 'COMPLETED' AND payable = 0 LIMIT 1`
	canceled   = `SELECT o.order_no FROM "order".orders o JOIN inventory.stock_hold h ON h.order_no = o.order_no WHERE o.status = 'CANCELED' LIMIT 1`
	refunded   = `SELECT order_no FROM "order".orders WHERE status = 'REFUNDED' AND payable > 0 LIMIT 1`
	aRefund    = `SELECT refund_no FROM "order".refund WHERE cash > 0 LIMIT 1`
	applying   = `SELECT r.transaction_id FROM payment.payment_receipt r JOIN "order".orders o ON o.order_no = r.order_no WHERE r.class = 'APPLY' AND o.refund_count = 0 LIMIT 1`
	late       = `SELECT transaction_id FROM payment.payment_receipt WHERE class IN ('LATE', 'SECOND') LIMIT 1`
	discounted = `SELECT order_no FROM "order".orders WHERE status = 'COMPLETED' AND coupon_code = 'TEN-OFF' LIMIT 1`
	spender    = `SELECT order_no FROM "order".orders WHERE status = 'COMPLETED' AND points_spent > 0 LIMIT 1`
	reserved   = `SELECT effect_key FROM inventory.effect WHERE kind = 'stock.reserve' LIMIT 1`
	released   = `SELECT effect_key FROM inventory.effect WHERE kind = 'stock.release' LIMIT 1`
	paidSale   = `SELECT journal_key FROM ledger.journal WHERE kind = 'ORDER_PAID' LIMIT 1`
	anSKU      = `SELECT sku FROM inventory.stock WHERE sold > 1 LIMIT 1`
	member     = `SELECT user_id FROM points.points_account WHERE balance > 1 LIMIT 1`
)

func TestEachKindOfDamageIsNamed(t *testing.T) {
	shown := map[string]bool{}
	for _, list := range [][]damage{moneyDamage(), orderDamage(), goodsDamage(), loyaltyDamage(), ledgerDamage(), effectDamage(), eventDamage()} {
		for _, d := range list {
			shown[d.equation] = true
			t.Run(d.equation+"/"+d.name, func(t *testing.T) {
				t.Parallel()
				d.test(t)
			})
		}
	}
	for _, e := range checked(t, copyOfDay(t)) {
		if !shown[e.Name] {
			t.Errorf("no damage shows that equation %q sees anything", e.Name)
		}
	}
}

func (d damage) test(t *testing.T) {
	dir := copyOfDay(t)
	conn := attached(t, dir)
	k := "1"
	if d.pick != "" {
		if err := conn.QueryRowContext(t.Context(), d.pick).Scan(&k); err != nil {
			t.Fatalf("nothing to damage: %v", err)
		}
	}
	for _, statement := range d.do {
		var args []any
		if strings.Contains(statement, ":k") {
			args = append(args, sql.Named("k", k))
		}
		result, err := conn.ExecContext(t.Context(), statement, args...)
		if err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			t.Fatalf("%s: %d rows, %v", statement, n, err)
		}
	}
	want := d.want
	if want == "" {
		want = k
	}
	equations := checked(t, dir, named(all))
	for _, e := range equations {
		if e.Name == d.equation && e.Broken > 0 && strings.Contains(e.Detail, want) {
			return
		}
	}
	t.Errorf("the equation does not name %q; broken are:\n%s", want, broken(equations))
}

const all = 1_000_000 // details: one damage may break many rows, and the day decides which of them come first

func named(details int) func(*check.Checker) {
	return func(c *check.Checker) { c.Details = details }
}

func TestADetailNamesAsManyRowsAsWereAskedForAndCountsTheRest(t *testing.T) {
	dir := copyOfDay(t)
	if _, err := attached(t, dir).ExecContext(t.Context(), `UPDATE shipping.shipment SET pieces = pieces + 1`); err != nil {
		t.Fatal(err)
	}
	for _, details := range []int{0, 1, 5, all} {
		for _, e := range checked(t, dir, named(details)) {
			if e.Name != shipments {
				continue
			}
			if e.Broken <= 5 {
				t.Fatalf("only %d broken rows", e.Broken)
			}
			parts := strings.Split(e.Detail, "; ")
			rest := fmt.Sprintf("and %d more", e.Broken-details)
			if cut := details < e.Broken; cut != (parts[len(parts)-1] == rest) || len(parts) < min(details, e.Broken) {
				t.Errorf("%d details of %d broken rows: %s", details, e.Broken, e.Detail)
			}
		}
	}
}

func moneyDamage() []damage {
	return []damage{
		{name: "receipt missing", equation: onePayment, pick: done, do: []string{`DELETE FROM payment.payment_receipt WHERE order_no = :k`}},
		{name: "receipt of another amount", equation: onePayment, pick: done, do: []string{`UPDATE payment.payment_receipt SET amount = amount + 1 WHERE order_no = :k AND class = 'APPLY'`}},
		{name: "receipt in another currency", equation: onePayment, pick: done, do: []string{`UPDATE payment.payment_receipt SET currency = 'EUR' WHERE order_no = :k AND class = 'APPLY'`}},
		{name: "order paid by another transaction", equation: onePayment, pick: done, do: []string{`UPDATE "order".orders SET transaction_id = 'TX-OTHER' WHERE order_no = :k`}},
		{name: "two payments applied", equation: onePayment, pick: `SELECT order_no FROM payment.payment_receipt WHERE class = 'SECOND' LIMIT 1`,
			do: []string{`UPDATE payment.payment_receipt SET class = 'APPLY', state = 'APPLIED' WHERE order_no = :k AND class = 'SECOND'`}},
		{name: "a free order with a payment", equation: onePayment, pick: free, do: []string{`UPDATE payment.payment_receipt SET order_no = :k WHERE rowid = (SELECT MIN(rowid) FROM payment.payment_receipt WHERE class = 'APPLY')`}},
		{name: "payment applied to no order", equation: onePayment, do: []string{`UPDATE payment.payment_receipt SET order_no = 'NO-SUCH' WHERE rowid = (SELECT MIN(rowid) FROM payment.payment_receipt WHERE class = 'APPLY')`}, want: "NO-SUCH"},
		{name: "late money kept", equation: noMoney, pick: `SELECT order_no FROM payment.payment_receipt WHERE class = 'LATE' LIMIT 1`,
			do: []string{`UPDATE payment.payment_receipt SET state = 'REFUNDING' WHERE order_no = :k AND class = 'LATE'`}},
		{name: "channel took more", equation: keeps, pick: done, do: []string{`UPDATE world.channel_payment SET amount = amount + 100 WHERE transaction_id = (SELECT transaction_id FROM "order".orders WHERE order_no = :k)`}},
		{name: "channel gave back more", equation: keeps, pick: done, do: []string{`UPDATE world.channel_payment SET refunded = 1 WHERE transaction_id = (SELECT transaction_id FROM "order".orders WHERE order_no = :k)`}},
		{name: "order forgot its refund", equation: keeps, pick: `SELECT order_no FROM "order".refund WHERE cash > 0 LIMIT 1`, do: []string{`DELETE FROM "order".refund WHERE order_no = :k`}},
		{name: "second payment not sent back", equation: ended, pick: late, do: []string{`UPDATE payment.payment_receipt SET state = 'REFUND_FAILED' WHERE transaction_id = :k`}},
		{name: "unknown payment in its grace period for ever", equation: ended, pick: `SELECT transaction_id FROM payment.payment_receipt WHERE class = 'UNKNOWN_ORDER' LIMIT 1`,
			do: []string{`UPDATE payment.payment_receipt SET state = 'GRACE' WHERE transaction_id = :k`}},
		{name: "success filed as nothing", equation: ended, pick: applying, do: []string{`UPDATE payment.payment_receipt SET class = 'IGNORED', state = 'IGNORED' WHERE transaction_id = :k`}},
		{name: "late payment filed as wrong amount", equation: classified, pick: late, do: []string{`UPDATE payment.payment_receipt SET class = 'WRONG_AMOUNT' WHERE transaction_id = :k`}},
		{name: "our money filed as somebody else's", equation: classified, pick: applying, do: []string{`UPDATE payment.payment_receipt SET class = 'WRONG_MERCHANT', state = 'HELD' WHERE transaction_id = :k`}},
		{name: "known trade filed as unknown", equation: classified, pick: late, do: []string{`UPDATE payment.payment_receipt SET class = 'UNKNOWN_ORDER', order_no = '' WHERE transaction_id = :k`}},
		{name: "order's payment missing", equation: sides, pick: done, do: []string{`DELETE FROM payment.payment_order WHERE order_no = :k`}},
		{name: "payment open again", equation: sides, pick: done, do: []string{`UPDATE payment.payment_order SET state = 'OPEN' WHERE order_no = :k`}},
		{name: "payment of another amount", equation: sides, pick: done, do: []string{`UPDATE payment.payment_order SET payable = payable + 1 WHERE order_no = :k`}},
		{name: "paid less than payable", equation: sides, pick: done, do: []string{`UPDATE payment.payment_order SET paid_amount = paid_amount - 1 WHERE order_no = :k`}},
		{name: "refunded sum off", equation: sides, pick: done, do: []string{`UPDATE payment.payment_order SET refunded = 1 WHERE order_no = :k`}},
		{name: "reservation left", equation: sides, pick: done, do: []string{`UPDATE payment.payment_order SET refund_reserved = 1 WHERE order_no = :k`}},
		{name: "canceled order's payment not closed", equation: sides, pick: canceled, do: []string{`UPDATE payment.payment_order SET state = 'CLOSING' WHERE order_no = :k`}},
		{name: "order missing", equation: sides, pick: done, do: []string{`DELETE FROM "order".orders WHERE order_no = :k`}},
		{name: "trade open at the channel", equation: trades, pick: `SELECT trade_no FROM world.channel_trade WHERE state = 'CLOSED' AND trade_no IN (SELECT trade_no FROM payment.payment_intent) LIMIT 1`,
			do: []string{`DELETE FROM world.channel_trade WHERE trade_no = :k`}},
		{name: "attempt paid without a payment", equation: trades, pick: `SELECT trade_no FROM payment.payment_intent WHERE state = 'CLOSED' LIMIT 1`,
			do: []string{`UPDATE payment.payment_intent SET state = 'PAID' WHERE trade_no = :k`}},
		{name: "payment that we do not know", equation: bill, do: []string{`INSERT INTO world.channel_payment SELECT 'TX-STRAY', trade_no, merchant, amount, currency, 0, at FROM world.channel_payment LIMIT 1`}, want: "TX-STRAY"},
		{name: "payment that the channel does not know", equation: bill, pick: applying, do: []string{`DELETE FROM world.channel_payment WHERE transaction_id = :k`}},
		{name: "receipt twice", equation: bill, pick: applying, do: []string{`INSERT INTO payment.payment_receipt SELECT 'another digest', channel, transaction_id, kind, trade_no, order_no, user_id, merchant, amount, currency, 'LATE', 'REFUNDED', source,
			notice_id, body, deliveries, conflicts, refund_attempt, channel_refund_id, reason, received_at, updated_at FROM payment.payment_receipt WHERE transaction_id = :k`}},
		{name: "refund that we do not know", equation: refundBill, pick: applying, do: []string{
			`INSERT INTO world.channel_refund (refund_no, refund_id, transaction_id, amount, currency, repeats, at) VALUES ('R-STRAY', 'RF-STRAY', :k, 1, 'GBP', 0, 1)`}, want: "RF-STRAY"},
		{name: "refund that the channel does not know", equation: refundBill, pick: `SELECT channel_refund_id FROM payment.payment_refund WHERE state = 'REFUNDED' LIMIT 1`,
			do: []string{`DELETE FROM world.channel_refund WHERE refund_id = :k`}},
		{name: "refund of another amount", equation: refundBill, pick: `SELECT channel_refund_id FROM payment.payment_receipt WHERE state = 'REFUNDED' LIMIT 1`,
			do: []string{`UPDATE world.channel_refund SET amount = amount + 1 WHERE refund_id = :k`}},
		{name: "channel's own sum off", equation: refundBill, pick: applying, do: []string{`UPDATE world.channel_payment SET refunded = refunded + 1 WHERE transaction_id = :k`}},
	}
}

func orderDamage() []damage {
	return []damage{
		{name: "payment side missing", equation: refunds, pick: aRefund, do: []string{`DELETE FROM payment.payment_refund WHERE refund_no = :k`}},
		{name: "order side missing", equation: refunds, pick: aRefund, do: []string{`DELETE FROM "order".refund WHERE refund_no = :k`}},
		{name: "amounts differ", equation: refunds, pick: aRefund, do: []string{`UPDATE payment.payment_refund SET amount = amount + 1 WHERE refund_no = :k`}},
		{name: "requested and forgotten", equation: refunds, pick: aRefund, do: []string{`UPDATE "order".refund SET status = 'REQUESTED' WHERE refund_no = :k`}},
		{name: "failed on one side", equation: refunds, pick: aRefund, do: []string{`UPDATE payment.payment_refund SET state = 'FAILED' WHERE refund_no = :k`}},
		{name: "line share off by one", equation: sums, pick: discounted, do: []string{`UPDATE "order".order_line SET coupon_share = coupon_share + 1 WHERE order_no = :k AND line_no = 1`}},
		{name: "shares moved between lines", equation: sums, pick: `SELECT order_no FROM "order".order_line WHERE line_no IN (1, 2) AND payable > refunded_cash GROUP BY order_no HAVING COUNT(*) = 2 LIMIT 1`,
			do: []string{`UPDATE "order".order_line SET payable = payable + 1 WHERE order_no = :k AND line_no = 1`, `UPDATE "order".order_line SET payable = payable - 1 WHERE order_no = :k AND line_no = 2`}},
		{name: "line missing", equation: sums, pick: done, do: []string{`DELETE FROM "order".order_line WHERE order_no = :k`}},
		{name: "line without order", equation: sums, pick: done, do: []string{`UPDATE "order".order_line SET order_no = 'NO-SUCH' WHERE order_no = :k AND line_no = 1`}, want: "NO-SUCH"},
		{name: "price times quantity", equation: sums, pick: done, do: []string{`UPDATE "order".order_line SET quantity = quantity + 1 WHERE order_no = :k AND line_no = 1`}},
		{name: "refunded pieces without a refund", equation: sums, pick: done, do: []string{`UPDATE "order".order_line SET refunded_quantity = 1 WHERE order_no = :k AND line_no = 1`}},
		{name: "refund line off by one", equation: sums, pick: aRefund, do: []string{`UPDATE "order".refund_line SET cash = cash + 1 WHERE refund_no = :k AND line_no = 1`}},
		{name: "refund without lines", equation: sums, pick: aRefund, do: []string{`DELETE FROM "order".refund_line WHERE refund_no = :k`}},
		{name: "discount larger than the coupon", equation: sums, pick: discounted, do: []string{`UPDATE "order".orders SET coupon_total = coupon_total + 1, payable = payable - 1 WHERE order_no = :k`,
			`UPDATE "order".order_line SET coupon_share = coupon_share + 1, payable = payable - 1 WHERE order_no = :k AND line_no = (SELECT MIN(line_no) FROM "order".order_line WHERE order_no = :k AND payable > 0)`}},
		{name: "refunded with pieces left", equation: wholly, pick: refunded, do: []string{`UPDATE "order".order_line SET refunded_quantity = refunded_quantity - 1 WHERE order_no = :k AND line_no = 1`}},
		{name: "refunding for ever", equation: wholly, pick: refunded, do: []string{`UPDATE "order".orders SET status = 'REFUNDING' WHERE order_no = :k`}},
		{name: "all came back but not refunded", equation: wholly, pick: refunded, do: []string{`UPDATE "order".orders SET status = 'COMPLETED' WHERE order_no = :k`}},
		{name: "order without a token", equation: tokens, pick: done, do: []string{`DELETE FROM "order".client_token_claim WHERE order_no = :k`}},
		{name: "order claimed twice", equation: tokens, pick: done, do: []string{`INSERT INTO "order".client_token_claim SELECT 'another token', user_id, order_no, fingerprint, claimed_at FROM "order".client_token_claim WHERE order_no = :k`}},
		{name: "claim of somebody else", equation: tokens, pick: done, do: []string{`UPDATE "order".client_token_claim SET user_id = 'mallory' WHERE order_no = :k`}},
		{name: "never decided", equation: decided, pick: done, do: []string{`DELETE FROM risk.risk_decision WHERE order_no = :k`}},
		{name: "refused but sold", equation: decided, pick: done, do: []string{`UPDATE risk.risk_decision SET approved = 0 WHERE order_no = :k`}},
		{name: "decided over another amount", equation: decided, pick: done, do: []string{`UPDATE risk.risk_decision SET amount = 1 WHERE order_no = :k`}},
		{name: "decided for no order", equation: decided, pick: done, do: []string{`INSERT INTO risk.risk_decision SELECT 'NO-SUCH', user_id, approved, rule_name, reason, amount, currency, decided_at FROM risk.risk_decision WHERE order_no = :k`}, want: "NO-SUCH"},
		{name: "order moved backwards", equation: history, pick: done, do: []string{`UPDATE "order".orders SET status = 'PAID' WHERE order_no = :k`}},
		{name: "order moved forward without history", equation: history, pick: canceled, do: []string{`UPDATE "order".orders SET status = 'PAID' WHERE order_no = :k`}},
		{name: "order in a state that does not exist", equation: history, pick: done, do: []string{`UPDATE "order".orders SET status = 'LOST' WHERE order_no = :k`}},
		{name: "order moved backwards with a forged history", equation: history, pick: done, do: []string{`UPDATE "order".orders SET status = 'PAID' WHERE order_no = :k`,
			`INSERT INTO "order".machine_transition (machine, entity_id, move, from_state, to_state, cause, cause_key, actor, version, at) SELECT machine, entity_id, 'back', to_state, 'PAID', cause, cause_key, actor, version + 1, at
			 FROM "order".machine_transition WHERE entity_id = :k ORDER BY id DESC LIMIT 1`}},
		{name: "history without its beginning", equation: history, pick: done, do: []string{`DELETE FROM "order".machine_transition WHERE entity_id = :k AND from_state = ''`}},
		{name: "history with a hole", equation: history, pick: done, do: []string{`DELETE FROM "order".machine_transition WHERE entity_id = :k AND to_state = 'SHIPPED'`}},
		{name: "no history", equation: history, pick: done, do: []string{`DELETE FROM "order".machine_transition WHERE entity_id = :k`}},
		{name: "history rewritten", equation: history, pick: done, do: []string{`UPDATE "order".machine_transition SET cause = 'standard:TX-OTHER' WHERE entity_id = :k AND to_state = 'PAID'`}},
		{name: "payment state without history", equation: history, pick: done, do: []string{`UPDATE payment.payment_order SET state = 'CLOSED' WHERE order_no = :k`}},
		{name: "refund state without history", equation: history, pick: aRefund, do: []string{`UPDATE "order".refund SET status = 'FAILED' WHERE refund_no = :k`}},
		{name: "shipment state without history", equation: history, pick: done, do: []string{`UPDATE shipping.shipment SET state = 'DISPATCHED' WHERE order_no = :k`}},
		{name: "stock state without history", equation: history, pick: canceled, do: []string{`UPDATE inventory.stock_order SET state = 'HELD' WHERE order_no = :k`}},
		{name: "coupon state without history", equation: history, pick: discounted, do: []string{`UPDATE coupon.coupon_use SET state = 'LOCKED' WHERE biz_id = :k`}},
		{name: "points state without history", equation: history, pick: spender, do: []string{`UPDATE points.points_order SET state = 'LOCKED' WHERE order_no = :k`}},
		{name: "change without a cause", equation: changeCause, pick: done, do: []string{`UPDATE "order".machine_transition SET cause_key = '' WHERE entity_id = :k AND to_state = 'PAID'`}},
		{name: "change because of nothing", equation: changeCause, pick: done, do: []string{`UPDATE shipping.machine_transition SET cause_key = 'OrderPaid:NO-SUCH' WHERE entity_id = :k AND to_state = 'BOOKING'`}},
	}
}
