package nats

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/testserver"
)

func TestAssignGivesEachAsManyOneMoreOrLess(t *testing.T) {
	for members := 1; members <= 12; members++ {
		var ids []string
		for i := range members {
			ids = append(ids, fmt.Sprint("i", i))
		}
		count := map[string]int{}
		for _, id := range assign(8, ids) {
			count[id]++
		}
		for _, id := range ids {
			if n := count[id]; n < 8/members || n > (8+members-1)/members {
				t.Errorf("%d members: %s has %d of 8 partitions", members, id, n)
			}
		}
	}
	if got := assign(2, nil); !slices.Equal(got, []string{"", ""}) {
		t.Errorf("nobody there: %v", got)
	}
}

func plainGroup(id string, subjects ...convergo.Subject) *group {
	b := &Broker{cfg: Config{}.withDefaults()}
	g := b.newGroup("payment", subjects)
	g.id = id
	return g
}

func TestASilentMemberIsGivenUpAfterALeaseAndNotBefore(t *testing.T) {
	order := convergo.Subject{Topic: "order"}
	g := plainGroup("a", order)
	now := time.Unix(1000, 0)
	d := document{Subjects: []convergo.Subject{order}, Members: map[string]member{"b": {Beat: 7, Subjects: g.mine}}, Owners: make([]owner, 8)}
	for n := range d.Owners {
		d.Owners[n] = owner{"b", 3}
	}
	g.look(d, now)
	g.look(d, now.Add(9*time.Second)) // the same beat is no sign of life
	next, _, _ := g.plan(d, now.Add(10*time.Second))
	if next.Owners[0] != (owner{"b", 3}) {
		t.Errorf("taken within the lease: %v", next.Owners)
	}
	next, changed, _ := g.plan(d, now.Add(10*time.Second+1))
	if _, there := next.Members["b"]; there || !changed {
		t.Errorf("still a member after its lease: %v", next.Members)
	}
	for _, o := range next.Owners {
		if o != (owner{"a", 4}) {
			t.Errorf("owner %v, want a with a new term", o)
		}
	}
	d.Members["b"] = member{Beat: 8, Subjects: g.mine}
	g.look(d, now.Add(11*time.Second))
	if next, _, _ := g.plan(d, now.Add(20*time.Second)); next.Owners[0].ID != "b" {
		t.Error("a beat did not count")
	}
}

func TestADocumentOfAReplicaThatLagsIsNotActedUpon(t *testing.T) {
	g := plainGroup("a", convergo.Subject{Topic: "order"})
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		revision uint64
		after    time.Duration
		old      bool
	}{{5, 0, false}, {4, 0, true}, {6, time.Second, false}, {3, time.Second, true}, {3, 9 * time.Second, true}, {3, 11 * time.Second, false}, {4, 12 * time.Second, false}} {
		if got := g.old(c.revision, now.Add(c.after)); got != c.old {
			t.Errorf("revision %d after %s: old %v", c.revision, c.after, got)
		}
	}
}

// The one who was stopped for longer than its lease does not know it yet.
func TestAZombieCannotSetBackThePosition(t *testing.T) {
	server := testserver.Own(t, testserver.OpenNATS)
	b, err := Open(t.Context(), Config{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	reader := func(id string, term int64) *partition {
		g := b.newGroup("payment", []convergo.Subject{{Topic: "order"}})
		g.id = id
		p := &partition{group: g, n: 3, term: term, dirty: make(chan struct{}, 1)}
		if err := p.claim(t.Context()); err != nil {
			t.Fatal(err)
		}
		return p
	}
	zombie := reader("a", 1)
	zombie.done.Seq = 10
	if err := zombie.store(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	successor := reader("b", 2)
	if successor.done.Seq != 10 || successor.deaths != 1 {
		t.Errorf("the successor begins at %d after %d deaths, want 10 after 1", successor.done.Seq, successor.deaths)
	}
	successor.done.Seq = 20
	if err := successor.store(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	zombie.done.Seq = 11
	if err := zombie.store(t.Context(), false); !errors.Is(err, errConflict) {
		t.Errorf("the zombie's position: %v, want a conflict", err)
	}
	if at, _, err := b.readPosition(t.Context(), "payment", 3); err != nil || at.Seq != 20 {
		t.Errorf("position %v, %v", at, err)
	}
	// A write whose answer was lost is known again.
	successor.revision--
	successor.done.Seq = 21
	if err := successor.store(t.Context(), false); err != nil {
		t.Errorf("after a lost answer: %v", err)
	}
	if err := successor.store(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if third := reader("c", 3); third.deaths != 0 || third.done.Seq != 21 {
		t.Errorf("after a partition was given back: %d deaths, position %d", third.deaths, third.done.Seq)
	}
}

// An instance that cannot reach the servers must stop before another may begin.
func TestWithoutALeaseNothingIsHandedOut(t *testing.T) {
	g := plainGroup("a", convergo.Subject{Topic: "order"})
	p := &partition{group: g, dirty: make(chan struct{}, 1), room: make(chan struct{}, 1)}
	p.items = []*item{{seq: 1}, {seq: 2}}
	g.parts[0] = p
	s := &source{g}
	g.trusted = time.Now().Add(time.Hour)
	if got, _, _, err := g.take(t.Context(), s, 1); len(got) != 1 || err != nil {
		t.Fatalf("with a lease: %v, %v", got, err)
	}
	g.trusted = time.Now().Add(-time.Nanosecond)
	if got, _, _, err := g.take(t.Context(), s, 1); len(got) != 0 || err != nil {
		t.Errorf("without a lease: %v, %v", got, err)
	}
	g.failure = errors.New("no connection")
	if _, _, _, err := g.take(t.Context(), s, 1); !errors.Is(err, g.failure) {
		t.Errorf("error %v", err)
	}
}

// Two sources of one process must not work on one aggregate at a time.
func TestAPartitionIsAtOneSourceAtATime(t *testing.T) {
	g := plainGroup("a", convergo.Subject{Topic: "order"})
	p := &partition{group: g, dirty: make(chan struct{}, 1), room: make(chan struct{}, 1), items: []*item{{seq: 1}, {seq: 2}, {seq: 3}}}
	g.parts[0], g.trusted = p, time.Now().Add(time.Hour)
	one, two := &source{g}, &source{g}
	first, _, _, _ := g.take(t.Context(), one, 2)
	if got, _, _, _ := g.take(t.Context(), two, 1); len(got) != 0 {
		t.Error("the second source was given a part of what the first works on")
	}
	if err := first[1].Ack(t.Context()); err != nil || p.done.Seq != 0 {
		t.Errorf("position %d after the second of two was acknowledged, want 0: %v", p.done.Seq, err)
	}
	if err := first[0].Return(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	again, _, _, _ := g.take(t.Context(), two, 1)
	if len(again) != 1 || again[0].Attempt != 2 {
		t.Fatalf("what was returned: %+v", again)
	}
	if err := again[0].Ack(t.Context()); err != nil || p.done.Seq != 2 || len(p.items) != 1 {
		t.Errorf("position %d, %d left, want 2 and 1: %v", p.done.Seq, len(p.items), err)
	}
}
