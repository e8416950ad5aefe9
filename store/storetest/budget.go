package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/relay"
)

func budgetLaws[TX any]() []law[TX] {
	return []law[TX]{
		{"a claim has a budget of bytes, and the claims after it take the rest, in order and from every lane (B07)", claimsHaveABudget[TX]},
		{"lanes take turns where their first events alone are more than a claim's budget", lanesTakeTurns[TX]},
		{"a claim's budget holds for the queues of blocked aggregates too", queuesHaveABudget[TX]},
		{"an event of any legal size comes out as it went in, also beside small ones", largeEventsAreWhole[TX]},
		{"an event that is too large is not read, and dies in its turn (B07)", tooLargeIsNotRead[TX]},
		{"an operator's page has a budget of bytes, and the pages after it have the rest", pagesHaveABudget[TX]},
		{"an event that is too large is not read out of a queue either, nor by an operator", tooLargeIsNotReadAgain[TX]},
	}
}

// bulky is the n-th event of an aggregate, with a payload of a length.
func bulky(a convergo.Aggregate, n, length int) convergo.Event {
	e := event(a, n)
	e.Payload = bytes.Repeat([]byte{byte(n), 0xff, 0, '\'', byte(len(a.ID))}, length/5+1)[:length]
	return e
}

// insertEach commits the events one by one: a transaction of all of them is larger than a server may take.
func (r *rig[TX]) insertEach(events ...convergo.Event) {
	r.Helper()
	for _, e := range events {
		r.insert(e)
	}
}

// claimWithin claims, and checks the budget and the order.
func (r *rig[TX]) claimWithin(leases []relay.Lease, perLane int, after time.Duration) relay.Claim {
	r.Helper()
	c := r.claim(leases, perLane, after)
	n := 0
	for _, p := range c.Events {
		n += len(p.Event.Payload)
	}
	if n > relay.MaxClaimBytes {
		r.Errorf("a claim has %d bytes, more than %d", n, relay.MaxClaimBytes)
	}
	return c
}

// drained claims and sends until nothing is left, and returns how many claims it took. Nothing may come out of order, and the
// claims have to say that there is more.
func (r *rig[TX]) drained(leases []relay.Lease, total int, after time.Duration, last map[convergo.Aggregate]int64) (claims int) {
	r.Helper()
	for n := 0; n < total; claims++ {
		c := r.claimWithin(leases, total, after)
		if len(c.Events) == 0 {
			r.Fatalf("nothing is claimed after %d of %d events", n, total)
		}
		n += len(c.Events)
		equal(r, fmt.Sprintf("more, after %d of %d", n, total), c.More, n < total)
		for _, p := range c.Events {
			if v := last[p.Event.Aggregate]; p.Event.Version != v+1 {
				r.Fatalf("version %d of %s after version %d", p.Event.Version, p.Event.Aggregate, v)
			}
			last[p.Event.Aggregate]++
		}
		r.settle(inLanes(leases, c.Events), after, settleSent(c.Events))
	}
	equal(r, "left", len(r.claim(leases, total, after).Events), 0)
	return claims
}

func claimsHaveABudget[TX any](r *rig[TX]) {
	full, lanes := convergo.MaxPayloadBytes, 3
	var list []convergo.Event
	for n := range 34 {
		for lane := range lanes {
			size := full
			if lane == 1 {
				size = 1000 // a lane of small ones, beside those of large ones
			}
			list = append(list, bulky(orderIn(convergo.Lane(20*lane), n%2), n/2+1, size))
		}
	}
	for n := range 12 { // and one with both
		list = append(list, bulky(orderIn(30, 0), n+1, []int{full, 20}[n%2]))
	}
	r.insertEach(list...)
	leases := r.lease("a")
	c := r.claimWithin(leases, 100, 0)
	var busy [convergo.Lanes]int
	for _, p := range c.Events {
		busy[p.Lane]++
	}
	if busy[0] < 20 || busy[20] != 34 || busy[30] != 12 || busy[40] < 20 {
		r.Errorf("a claim has %d, %d, %d and %d events of the lanes", busy[0], busy[20], busy[30], busy[40])
	}
	equal(r, "more", c.More, true)
	equal(r, "claims", r.drained(leases, len(list), 0, map[convergo.Aggregate]int64{}), 2)
}

func lanesTakeTurns[TX any](r *rig[TX]) {
	var list []convergo.Event
	for lane := range convergo.Lane(convergo.Lanes) {
		list = append(list, bulky(orderIn(lane, 0), 1, convergo.MaxPayloadBytes), event(orderIn(lane, 0), 2))
	}
	r.insertEach(list...)
	leases := r.lease("a")
	missed := map[convergo.Lane]bool{}
	for range 3 { // nothing is settled, and still another lane has to wait each time
		c := r.claimWithin(leases, 10, 0)
		var has [convergo.Lanes]bool
		for _, p := range c.Events {
			has[p.Lane] = true
		}
		for lane, ok := range has {
			if !ok {
				missed[convergo.Lane(lane)] = true
			}
		}
	}
	equal(r, "lanes that had to wait", len(missed), 3)
	r.drained(leases, len(list), 0, map[convergo.Aggregate]int64{})
}

func queuesHaveABudget[TX any](r *rig[TX]) {
	full := convergo.MaxPayloadBytes
	a, b := orderIn(7, 0), orderIn(7, 1)
	var list []convergo.Event
	for n := range 36 {
		list = append(list, bulky(a, n+1, full))
	}
	for n := range 40 {
		list = append(list, bulky(b, n+1, full))
	}
	r.insertEach(list...)
	leases := r.lease("a")
	for _, blocked := range []convergo.Aggregate{a, b} {
		c := r.claimWithin(leases, 100, 0)
		head := of(c, blocked)
		for len(head) == 0 || head[0].Held { // behind those of a
			r.settle(inLanes(leases, c.Events), 0, relay.Settlement{Aside: of(c, a)})
			c = r.claimWithin(leases, 100, 0)
			head = of(c, blocked)
		}
		r.settle(inLanes(leases, head), 0, relay.Settlement{Failed: []relay.Failure{r.fail(head[0], time.Minute)}, Aside: head[1:]})
	}
	for c := r.claimWithin(leases, 100, 0); len(c.Events) > 0; c = r.claimWithin(leases, 100, 0) {
		r.settle(inLanes(leases, c.Events), 0, relay.Settlement{Aside: c.Events})
	}
	c := r.claimWithin(leases, 100, time.Minute)
	equalLists(r, "the heads, which have failed", versions(c.Events), 1, 1)
	r.settle(inLanes(leases, c.Events), time.Minute, settleSent(c.Events))
	last := map[convergo.Aggregate]int64{a: 1, b: 1}
	if n := r.drained(leases, len(list)-2, time.Minute, last); n < 2 || n > 3 {
		r.Errorf("the queues took %d claims", n)
	}
}

func largeEventsAreWhole[TX any](r *rig[TX]) {
	a := orderIn(9, 0)
	var list []convergo.Event
	for n, size := range []int{0, 1, 2000, 9000, relay.InlineBytes - 1, relay.InlineBytes, relay.InlineBytes + 1, 5, 300_000, convergo.MaxPayloadBytes, 17} {
		e := bulky(a, n+1, size)
		e.Headers = map[string]string{"n": fmt.Sprint(n)}
		e.CreatedAt, e.MaxAttempts = r.base.Add(-time.Minute), n
		list = append(list, e)
	}
	wide := bulky(a, len(list)+1, 30)
	wide.Headers, wide.CreatedAt = map[string]string{}, r.base
	for n := range 4 {
		wide.Headers[fmt.Sprint("h", n)] = strings.Repeat("é<\"", 1000)
	}
	list = append(list, wide, bulky(a, len(list)+2, 3))
	for _, e := range list {
		r.must(e.Validate())
	}
	r.insert(list...)
	leases := r.lease("a")
	c := r.claim(leases, 100, 0)
	if len(c.Events) != len(list) || c.More {
		r.Fatalf("%d of %d events are claimed, more: %v", len(c.Events), len(list), c.More)
	}
	for i, p := range c.Events {
		if p.Malformed != nil {
			r.Error(p.Malformed)
		}
		if i < len(list)-1 {
			sameEvent(r, p.Event, list[i])
		}
	}
	r.settle(inLanes(leases, c.Events), 0, relay.Settlement{
		Failed: []relay.Failure{r.fail(c.Events[0], time.Minute)}, Aside: c.Events[1:],
	})
	c = r.claim(leases, 100, time.Minute)
	sameEvent(r, c.Events[0].Event, list[0])
	r.settle(inLanes(leases, c.Events), time.Minute, settleSent(c.Events))
	c = r.claim(leases, 100, time.Minute)
	for i, p := range c.Events {
		if i < len(list)-2 {
			sameEvent(r, p.Event, list[i+1])
		}
	}
	equal(r, "from the queue", len(c.Events), len(list)-1)
}

func pagesHaveABudget[TX any](r *rig[TX]) {
	total := 2*ops.MaxPageBytes/convergo.MaxPayloadBytes + 3
	a := orderIn(5, 0)
	var list []convergo.Event
	for n := range total {
		list = append(list, bulky(a, n+1, convergo.MaxPayloadBytes))
	}
	r.insertEach(list...)
	leases := r.lease("a")
	r.killEvents(leases, true)
	for n := range list {
		e := list[n]
		r.update(func(ctx context.Context, tx TX) error {
			f := inbox.Failure{Event: e, Attempts: 1, Error: "weather", Place: "handler"}
			_, err := r.Parking.Bury(ctx, tx, "c", f, true, r.base)
			return err
		})
	}
	var sizes []int
	for after, n := int64(0), 0; n < total; {
		page, err := r.Operators.DeadEvents(r.ctx, 100, after)
		r.must(err)
		if len(page) == 0 {
			r.Fatalf("an empty page after %d of %d events", n, total)
		}
		for i, d := range page {
			sameEvent(r, d.Event, list[n+i])
		}
		sizes, n, after = append(sizes, len(page)), n+len(page), page[len(page)-1].ID
	}
	equal(r, "pages of events", len(sizes), 3)
	sizes = nil
	for after, n := "", 0; n < total; {
		page, err := r.Operators.DeadLetters(r.ctx, "c", 100, after)
		r.must(err)
		if len(page) == 0 {
			r.Fatalf("an empty page after %d of %d letters", n, total)
		}
		sizes, n, after = append(sizes, len(page)), n+len(page), page[len(page)-1].ID
	}
	equal(r, "pages of letters", len(sizes), 3)
}

// tooLarge are the ways in which another program's row can be larger than an event may be.
func tooLarge(a convergo.Aggregate) []convergo.Event {
	long, wide := bulky(a, 1, convergo.MaxPayloadBytes+1), event(a, 2)
	wide.Headers = map[string]string{"a": strings.Repeat("x", relay.MaxHeaderText)}
	return []convergo.Event{long, wide, bulky(a, 3, 2_000_000)}
}

func (r *rig[TX]) wantMalformed(p relay.Pending, want convergo.Event, texts ...string) {
	r.Helper()
	if p.Event.Key != want.Key || p.Event.Aggregate != want.Aggregate || p.Event.Version != want.Version || p.Event.Topic != want.Topic {
		r.Errorf("what could be read is %+v", p.Event)
	}
	if p.Malformed == nil || len(p.Event.Payload) > 0 || len(p.Event.Headers) > 0 {
		r.Fatalf("%s was read: %d bytes, error %v", want.Key, len(p.Event.Payload), p.Malformed)
	}
	if !errors.Is(p.Malformed, convergo.ErrInvalid) || convergo.VerdictOf(p.Malformed) != convergo.Park {
		r.Errorf("the error %v is none for a person", p.Malformed)
	}
	for _, text := range append(texts, "discard") {
		if !strings.Contains(p.Malformed.Error(), text) {
			r.Errorf("the error %q does not say %q", p.Malformed, text)
		}
	}
}

func tooLargeIsNotRead[TX any](r *rig[TX]) {
	a, b := orderIn(3, 0), orderIn(3, 1)
	bad := tooLarge(a)
	r.insertEach(append(bad, event(a, 4), event(b, 1))...)
	leases := r.lease("a")
	c := r.claim(leases, 10, 0)
	if len(c.Events) != 5 {
		r.Fatalf("%d events, want 5", len(c.Events))
	}
	r.wantMalformed(c.Events[0], bad[0], "payload", "524289", "524288")
	r.wantMalformed(c.Events[1], bad[1], "headers", fmt.Sprint(relay.MaxHeaderText))
	r.wantMalformed(c.Events[2], bad[2], "payload", "2000000", "524288")
	for _, p := range c.Events[3:] {
		if p.Malformed != nil || len(p.Event.Payload) == 0 {
			r.Errorf("%s was not read: %v", p.Event.Key, p.Malformed)
		}
	}
	equal(r, "more", c.More, false)
	r.settle(inLanes(leases, c.Events), 0, relay.Settlement{
		Sent: of(c, b), Dead: []relay.Failure{r.fail(c.Events[0], 0)}, HoldAggregate: true, Aside: c.Events[1:4],
	})
	equal(r, "claimed while it is held", len(r.claim(leases, 10, 0).Events), 0)
}

func tooLargeIsNotReadAgain[TX any](r *rig[TX]) {
	a := orderIn(3, 0)
	bad := tooLarge(a)
	r.insertEach(append(bad, event(a, 4))...)
	leases := r.lease("a")
	r.killEvents(leases, true)
	dead := r.deadEvents()
	if len(dead) != 4 {
		r.Fatalf("%d dead events, want 4", len(dead))
	}
	for i, d := range dead {
		size := len(append(bad, event(a, 4))[i].Payload)
		equal(r, "its size, for an operator", d.PayloadBytes, int64(size))
		if i < 3 && (len(d.Event.Payload) > 0 && size > convergo.MaxPayloadBytes || len(d.Event.Headers) > 0) {
			r.Errorf("an operator's list has %d bytes of %s", len(d.Event.Payload), d.Event.Key)
		}
		equal(r, "key", d.Event.Key, event(a, i+1).Key)
	}
	r.must(r.Operators.RedriveEvent(r.ctx, dead[0].ID, "ann", "", r.base))
	c := r.claim(leases, 10, 0)
	if len(c.Events) != 0 { // the others still hold it
		r.Fatalf("%d events are claimed", len(c.Events))
	}
	for _, d := range dead[1:] {
		r.must(r.Operators.RedriveEvent(r.ctx, d.ID, "ann", "", r.base))
	}
	c = r.claim(leases, 10, 0)
	if len(c.Events) != 4 || !c.Events[0].Queued {
		r.Fatalf("%d events of the queue, want 4", len(c.Events))
	}
	for i := range bad {
		r.wantMalformed(c.Events[i], bad[i])
	}
	equal(r, "the last one was read", len(c.Events[3].Event.Payload) > 0, true)
}
