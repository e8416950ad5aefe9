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
	g.joined = true
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
