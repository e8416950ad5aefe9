package relay_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// row is one that a store finds; large are read later.
type row struct {
	p     relay.Pending
	size  int
	large bool
}

func rowsOf(r *rand.Rand, lanes int) (rows []row) {
	seq := int64(0)
	add := func(lane int, queued bool) {
		seq++
		size := 40 + r.IntN(1000)
		if r.IntN(3) == 0 {
			size = relay.InlineBytes + 1 + r.IntN(200_000)
		}
		p := relay.Pending{Seq: seq, Lane: convergo.Lane(lane), Queued: queued}
		rows = append(rows, row{p, size, size > relay.InlineBytes})
	}
	for lane := range lanes {
		for range r.IntN(6) * r.IntN(2) {
			add(lane, true)
		}
	}
	for lane := range lanes {
		for range r.IntN(30) {
			add(lane, false)
		}
	}
	return rows
}

func whole(p relay.Pending, size int) relay.Pending {
	p.Event = convergo.Event{Key: convergo.Key(fmt.Sprint(p.Seq)), Version: p.Seq}
	p.Event.Payload = make([]byte, size-len(p.Event.Key))
	return p
}

// claimed fills a portion with the rows; most is the most bytes that there were of events at any moment.
func claimed(t *testing.T, p *relay.Portion, rows []row) (events []relay.Pending, more bool) {
	t.Helper()
	sizes := map[int64]int{}
	for _, r := range rows {
		if r.large {
			sizes[r.p.Seq] = r.size
			p.AddLater(r.p, r.p.Seq)
		} else {
			p.Add(whole(r.p, r.size))
		}
	}
	err := p.Complete(func(ids []int64, tell func(int64, convergo.Event, relay.Sizes)) error {
		for _, id := range ids {
			tell(id, convergo.Event{}, relay.Sizes{Payload: int64(sizes[id])})
		}
		return nil
	}, func(ids []int64, tell func(int64, convergo.Event)) error {
		for _, id := range ids {
			tell(id, whole(relay.Pending{Seq: id}, sizes[id]).Event)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return p.Claim()
}

type streamName struct {
	lane   convergo.Lane
	queued bool
}

func streamsOf(rows []row) map[streamName][]row {
	m := map[streamName][]row{}
	for _, r := range rows {
		name := streamName{r.p.Lane, r.p.Queued}
		m[name] = append(m[name], r)
	}
	return m
}

func TestAPortionIsTheBeginningOfEachLaneAndWithinItsBudget(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		rows := rowsOf(r, 1+r.IntN(convergo.Lanes))
		budget, perLane := int64(1000+r.IntN(4_000_000)), 1+r.IntN(40)
		shuffled := slices.Clone(rows)
		if seed%3 == 0 { // a database promises no order of lanes, nor within them
			first := slices.IndexFunc(shuffled, func(r row) bool { return !r.p.Queued })
			if first >= 0 {
				rest := shuffled[first:]
				r.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
			}
		}
		events, more := claimed(t, relay.NewPortion(perLane, convergo.Lane(seed)).WithBudget(budget), shuffled)
		taken, sum := map[streamName][]relay.Pending{}, 0
		for i, e := range events {
			name := streamName{e.Lane, e.Queued}
			taken[name] = append(taken[name], e)
			sum += len(e.Event.Payload) + len(e.Event.Key)
			if i > 0 && (e.Queued && !events[i-1].Queued || !e.Queued && !events[i-1].Queued && e.Lane < events[i-1].Lane) {
				t.Errorf("seed %d: event %d is not in order", seed, i)
			}
		}
		if int64(sum) > budget && len(events) > 1 || len(events) == 0 && len(rows) > 0 {
			t.Errorf("seed %d: %d events of %d bytes, the budget is %d", seed, len(events), sum, budget)
		}
		for name, all := range streamsOf(rows) {
			got := taken[name]
			for i, e := range got {
				if e.Seq != all[i].p.Seq || len(e.Event.Payload)+len(e.Event.Key) != all[i].size {
					t.Fatalf("seed %d: event %d of %v is %d with %d bytes, want %d with %d", seed, i, name, e.Seq, len(e.Event.Payload), all[i].p.Seq, all[i].size)
				}
			}
			if !name.queued && len(got) > perLane {
				t.Errorf("seed %d: %d events of a lane, more than %d", seed, len(got), perLane)
			}
		}
		if more != (len(events) < len(rows)) {
			t.Errorf("seed %d: more is %v with %d of %d", seed, more, len(events), len(rows))
		}
	}
}

func TestAPortionLetsTheLargestLaneWaitAndNoOther(t *testing.T) {
	var rows []row
	for lane := range 3 {
		for n := range 20 {
			rows = append(rows, row{p: relay.Pending{Seq: int64(100*lane + n + 1), Lane: convergo.Lane(lane)}, size: []int{100, 5000, 9000}[lane]})
		}
	}
	events, more := claimed(t, relay.NewPortion(100, 0).WithBudget(52_000), rows)
	var count, bytes [3]int
	for _, e := range events {
		count[e.Lane]++
		bytes[e.Lane] += len(e.Event.Payload) + len(e.Event.Key)
	}
	if count[0] != 20 || bytes[1] < 20_000 || bytes[2] < 18_000 || !more {
		t.Errorf("%v events, %v bytes, more: %v", count, bytes, more)
	}
}

func TestLanesTakeTurnsWhenTheirFirstEventsAloneAreTooMuch(t *testing.T) {
	var rows []row
	for lane := range convergo.Lanes {
		rows = append(rows, row{p: relay.Pending{Seq: int64(lane + 1), Lane: convergo.Lane(lane)}, size: 1000})
	}
	seen := map[convergo.Lane]int{}
	for turn := range convergo.Lanes {
		events, _ := claimed(t, relay.NewPortion(1, convergo.Lane(turn)).WithBudget(10_000), rows)
		if len(events) != 10 {
			t.Fatalf("%d events, want 10", len(events))
		}
		for _, e := range events {
			seen[e.Lane]++
		}
	}
	for lane := range convergo.Lane(convergo.Lanes) {
		if seen[lane] != 10 {
			t.Errorf("lane %d was served %d times of %d, want 10", lane, seen[lane], convergo.Lanes)
		}
	}
}

// Where queues alone fill the budget at each claim, as with many large events that wait for a receiver that is away, lanes have turns.
func TestQueuesThatAreAlwaysFullDoNotStarveTheLanes(t *testing.T) {
	var rows []row
	for _, queued := range []bool{true, false} {
		for lane := range convergo.Lanes {
			rows = append(rows, row{p: relay.Pending{Seq: int64(len(rows) + 1), Lane: convergo.Lane(lane), Queued: queued}, size: 1000})
		}
	}
	for _, claims := range [][]int{{0, 1, 2, 3}, {0, 2, 4, 6}, {1, 3, 5, 7}} { // of one worker, and of two
		seen := map[bool]int{}
		for _, turn := range claims {
			events, _ := claimed(t, relay.NewPortion(1, convergo.Lane(turn)).WithBudget(64_000), rows)
			for _, e := range events {
				seen[e.Queued]++
			}
		}
		if seen[true] != 128 || seen[false] != 128 {
			t.Errorf("claims %v: %d events of queues and %d of lanes, want 128 of each", claims, seen[true], seen[false])
		}
	}
}

func TestAPortionTakesAnEventThatIsLargerThanItsBudgetAlone(t *testing.T) {
	rows := []row{
		{p: relay.Pending{Seq: 1, Lane: 3}, size: 300_000, large: true}, {p: relay.Pending{Seq: 2, Lane: 3}, size: 50},
		{p: relay.Pending{Seq: 3, Lane: 4}, size: 300_000, large: true},
	}
	events, more := claimed(t, relay.NewPortion(10, 3).WithBudget(100_000), rows)
	if len(events) != 1 || events[0].Seq != 1 || !more {
		t.Errorf("%d events, more: %v", len(events), more)
	}
}

func TestAPortionLeavesOutWhatIsGoneAndKeepsWhatIsMalformed(t *testing.T) {
	p := relay.NewPortion(10, 0).WithBudget(100_000)
	for seq := range int64(5) {
		p.AddLater(relay.Pending{Seq: seq + 1, Lane: 1}, seq+1)
	}
	err := p.Complete(func(ids []int64, tell func(int64, convergo.Event, relay.Sizes)) error {
		for _, id := range ids {
			e := convergo.Event{Key: "k", Topic: "order", Aggregate: convergo.Aggregate{Type: "order", ID: fmt.Sprint(id)}}
			switch id {
			case 1: // gone
			case 2:
				tell(id, e, relay.Sizes{Payload: 20_000_000})
			case 3:
				tell(id, e, relay.Sizes{AggregateID: 20_000_000})
			default:
				tell(id, e, relay.Sizes{Payload: 20_000})
			}
		}
		return nil
	}, func(ids []int64, tell func(int64, convergo.Event)) error {
		if !slices.Equal(ids, []int64{4, 5}) {
			t.Errorf("%v are read", ids)
		}
		tell(5, convergo.Event{Key: "five"})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	events, more := p.Claim()
	if len(events) != 3 || events[0].Seq != 2 || events[1].Seq != 3 || events[2].Seq != 5 || more {
		t.Fatalf("%+v, more: %v", events, more)
	}
	if events[0].Event.Aggregate.ID != "2" || events[1].Event.Aggregate.ID == "3" || events[2].Event.Key != "five" {
		t.Errorf("aggregates %s and %s", events[0].Event.Aggregate, events[1].Event.Aggregate)
	}
	for _, e := range events[:2] {
		if !errors.Is(e.Malformed, convergo.ErrInvalid) || convergo.VerdictOf(e.Malformed) != convergo.Park {
			t.Error(e.Malformed)
		}
	}
}

func TestHeadersThatCannotBeReadMakeAnEventMalformedAndNoOther(t *testing.T) {
	p := relay.NewPortion(10, 0)
	for i, headers := range []map[string]string{nil, {relay.UnreadableHeaders: "not json"}, {"trace": "1"}, {relay.UnreadableHeaders: "", "trace": "1"}} {
		p.Add(relay.Pending{Seq: int64(i), Event: convergo.Event{Headers: headers}})
	}
	events, _ := p.Claim()
	for i, e := range events {
		if bad := i == 1; bad != (e.Malformed != nil) || bad && (convergo.VerdictOf(e.Malformed) != convergo.Park || !errors.Is(e.Malformed, convergo.ErrInvalid)) {
			t.Errorf("headers %v: %v", e.Event.Headers, e.Malformed)
		}
	}
}
