package brokertest

import (
	"context"
	"testing"
	"time"

	"github.com/convergo/convergo/inbox"
)

func instanceLaws() []law {
	share := func(b Backend) bool { return b.Guarantees.InstancesShare && b.Another != nil }
	return []law{
		{"TwoInstancesDivideTheEventsEachOnceAndEachAggregateInOrder", share, instancesDivide},
		{"AnInstanceThatJoinsGetsAShareAndNothingOvertakes", share, instanceJoins},
		{"AnInstanceThatIsClosedHandsOver", share, instanceCloses},
		{"AnInstanceThatDiesHandsOver", share, instanceDies},
	}
}

// crowd is instances of one consumer that read side by side while lines publish.
type crowd struct {
	t     *testing.T
	b     Backend
	r     received
	lines []*line
	stop  func() // of the lines
}

// newCrowd lets instance one read and begins to publish. Many aggregates, so that every division gives each instance some.
func newCrowd(t *testing.T, b Backend) *crowd {
	t.Helper()
	c := &crowd{t: t, b: b, lines: []*line{newLine("A", 20), newLine("B", 20)}}
	c.instance("one", b.Broker)
	c.stop = begin(t, func(ctx context.Context) { runAll(ctx, t, c.lines, b.Broker) })
	return c
}

// instance reads with a source of its own until the returned function is called, which waits for the end of reading.
func (c *crowd) instance(name string, b Broker) (s inbox.Source, leave func()) {
	c.t.Helper()
	s = subscribe(c.t, b, "payment")
	return s, begin(c.t, func(ctx context.Context) { c.r.read(ctx, name, s) })
}

// gets waits until the instance has got something.
func (c *crowd) gets(name string, within time.Duration) {
	c.t.Helper()
	eventually(c.t, within, "instance "+name+" gets a share", func() bool { return c.r.count(name) > 0 })
}

// end stops publishing and checks that everything came, in order.
func (c *crowd) end(within time.Duration) {
	c.t.Helper()
	c.stop()
	c.r.has(c.t, c.lines, within)
	c.r.inOrder(c.t, Guarantees{OrderedPerAggregate: true})
}

func (c *crowd) another() (Broker, func()) { c.t.Helper(); return c.b.Another(c.t) }

func (c *crowd) confirmed() (n int) {
	for _, l := range c.lines {
		n += l.confirmed()
	}
	return n
}

func instancesDivide(t *testing.T, b Backend) {
	// Both are there, and have a share each, before the first event that counts.
	c := newCrowd(t, b)
	other, _ := c.another()
	c.instance("two", other)
	c.gets("one", patience)
	c.gets("two", patience)
	// The division may go on for a while after both have something.
	settled := time.NewTimer(b.Guarantees.HandsOver)
	defer settled.Stop()
	<-settled.C
	repeats := c.r.repeats()
	c.r.forget()
	from := c.confirmed()
	eventually(t, patience, "events are confirmed", func() bool { return c.confirmed() > from+2000 })
	c.end(patience)
	if n := c.r.repeats() - repeats; n > 0 {
		t.Errorf("%d events came more than once and nothing had failed", n)
	}
	for _, name := range []string{"one", "two"} {
		if n := c.r.count(name); n < 200 {
			t.Errorf("instance %s got %d of 2000 events", name, n)
		}
	}
}

func instanceJoins(t *testing.T, b Backend) {
	c := newCrowd(t, b)
	c.gets("one", patience)
	other, _ := c.another()
	c.instance("two", other)
	c.gets("two", b.Guarantees.HandsOver+patience/6)
	from := c.confirmed()
	eventually(t, patience, "events are confirmed", func() bool { return c.confirmed() > from+500 })
	c.end(patience)
}

func instanceCloses(t *testing.T, b Backend) {
	c := newCrowd(t, b)
	other, die := c.another()
	s, leave := c.instance("two", other)
	c.gets("one", patience)
	c.gets("two", patience)
	leave()
	if !closeSource(t, s) && die != nil {
		die() // a source that holds nothing goes with its broker
	}
	start := time.Now()
	c.end(b.Guarantees.HandsOver + b.Guarantees.Prompt)
	t.Logf("all that the closed instance left was there %s later", time.Since(start).Round(time.Millisecond))
}

func instanceDies(t *testing.T, b Backend) {
	c := newCrowd(t, b)
	other, die := c.another()
	if die == nil {
		t.Log("an instance of this broker cannot be made to die inside a test")
		return
	}
	s, leave := c.instance("two", other)
	c.gets("one", patience)
	c.gets("two", patience)
	leave()
	// It takes some more to its grave: delivered and never acknowledged, and not noted as received.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := s.Fetch(ctx, 16); err != nil {
		t.Fatal("fetch: ", err)
	}
	die()
	start := time.Now()
	c.end(b.Guarantees.HandsOver + b.Guarantees.Prompt)
	t.Logf("all that the dead instance left was there %s later", time.Since(start).Round(time.Millisecond))
}
