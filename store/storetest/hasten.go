package storetest

import (
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

func hastened[TX any](r *rig[TX]) {
	const mark = "waiting for order.OrderPaid: "
	a, b, other, held, elsewhere := orderIn(3, 0), orderIn(9, 0), orderIn(9, 1), orderIn(9, 2), orderIn(12, 0)
	all := []convergo.Aggregate{a, b, other, held, elsewhere}
	for _, one := range all {
		r.insert(events(one, 2)...)
	}
	leases := r.lease("a")
	c := r.claim(leases, 10, 0)
	failed := map[convergo.Aggregate]relay.Failure{}
	var aside []relay.Pending
	for _, one := range all {
		f := r.fail(of(c, one)[0], time.Hour)
		f.Error = mark + "endpoint shop is down"
		if one == other {
			f.Error = "waiting for order.OrderPaidTwice: endpoint shop is down"
		}
		failed[one] = f
		aside = append(aside, of(c, one)[1])
	}
	r.settle(inLanes(leases, c.Events), 0, relay.Settlement{
		Failed: []relay.Failure{failed[a], failed[b], failed[other], failed[held], failed[elsewhere]}, Aside: aside,
	})
	c = r.claim(leases, 10, time.Hour)
	dead := failed[held] // again, and for a person now; its time stays in the row
	dead.Pending = of(c, held)[0]
	r.settle(inLanes(leases, []relay.Pending{dead.Pending}), 0, relay.Settlement{Dead: []relay.Failure{dead}, HoldAggregate: true})
	equal(r, "due before", len(r.claim(leases, 10, time.Minute).Events), 0)
	var of3and9 []relay.Lease
	for _, l := range leases {
		if l.Lane == 3 || l.Lane == 9 {
			of3and9 = append(of3and9, l)
		}
	}
	hasten := func(leases []relay.Lease, most int, want int) {
		r.Helper()
		n, err := r.Relay.Hasten(r.ctx, leases, mark, most, r.base.Add(time.Minute))
		r.must(err)
		equal(r, "hastened", n, want)
	}
	hasten(nil, 10, 0)
	hasten(of3and9, 0, 0)
	hasten(of3and9, 1, 1)
	equal(r, "due then", len(r.claim(leases, 10, time.Minute).Events), 1)
	equal(r, "not before", len(r.claim(leases, 10, time.Minute-time.Microsecond).Events), 0)
	hasten(of3and9, 10, 1)
	hasten(of3and9, 10, 0)
	c = r.claim(leases, 10, time.Minute)
	equal(r, "due after", len(c.Events), 2)
	for _, one := range []convergo.Aggregate{a, b} { // the heads alone, with what they have spent
		equalLists(r, one.String(), versions(of(c, one)), 1)
		equal(r, "attempts", of(c, one)[0].Attempts, 1)
	}
	equal(r, "the others keep their time", c.NextDue.Equal(r.base.Add(time.Hour)), true)
	r.settle(inLanes(leases, c.Events), time.Minute, relay.Settlement{Sent: c.Events})
	c = r.claim(leases, 10, time.Minute)
	equal(r, "what was behind them", len(c.Events), 2)
	hasten(leases, 10, 1) // elsewhere's
}
