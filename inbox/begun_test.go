package inbox_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/store/memory"
)

// blind is a source whose broker does not count deliveries: it names the partition, and hands out the partitions in turn, in another
// order each time. Acks of the process that dies may be lost with it.
type blind struct {
	*source
	partitions int
	most       int // deliveries of a fetch; 0: as many as asked for
	turn       int
	loseAcks   bool // nothing that was acknowledged since forget is known to the broker after a death
	lost       []inbox.Delivery
}

func (b *blind) partition(e convergo.Event) int { return int(e.Aggregate.Lane()) % b.partitions }

func (b *blind) Fetch(ctx context.Context, most int) ([]inbox.Delivery, error) {
	if b.most > 0 {
		most = min(most, b.most)
	}
	b.mu.Lock()
	b.turn++
	slices.SortStableFunc(b.pending, func(x, y inbox.Delivery) int {
		place := func(d inbox.Delivery) int { return (b.partition(d.Event) + b.turn) % b.partitions }
		return place(x) - place(y)
	})
	b.mu.Unlock()
	deliveries, err := b.source.Fetch(ctx, most)
	for i := range deliveries {
		d := deliveries[i]
		deliveries[i].Partition = fmt.Sprint("order/", b.partition(d.Event))
		if b.loseAcks {
			deliveries[i].Ack = func(ctx context.Context) error {
				b.mu.Lock()
				b.lost = append(b.lost, d)
				b.mu.Unlock()
				return d.Ack(ctx)
			}
		}
	}
	return deliveries, err
}

// die is what the broker does when the process has died.
func (b *blind) die() {
	b.redeliver()
	b.mu.Lock()
	lost := b.lost
	b.lost = nil
	b.pending = append(slices.Clone(lost), b.pending...)
	b.mu.Unlock()
}

// lives runs processes, one after another, until one is not killed, or most were.
func lives(t *testing.T, s *store, src inbox.Source, cfg inbox.Config, most int, died func(), kills func(convergo.Event) bool) (deaths int) {
	t.Helper()
	cfg.Consumer = "points"
	for deaths = 0; deaths < most; deaths++ {
		c := inbox.New[*memory.Tx](s, s, src, cfg)
		c.Handle("Moved", func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
			if kills(e) {
				runtime.Goexit() // nothing recovers it, as nothing does a call of os.Exit
			}
			return s.effect(ctx, tx, e)
		})
		ctx, cancel := context.WithCancel(context.Background())
		result := make(chan error, 1)
		go func() { result <- c.Run(ctx) }()
		pass(5 * time.Minute)
		cancel()
		if err := <-result; err == nil {
			return deaths
		}
		died()
	}
	return deaths
}

// buriedAlone checks that the poison is the only dead letter and everything else was applied once and in order.
func buriedAlone(t *testing.T, s *store, src *source, poison convergo.Event, orders, events int) {
	t.Helper()
	for o := range orders {
		order := fmt.Sprint("O-", o)
		var want []string
		for n := 1; n <= events; n++ {
			if order == poison.Aggregate.ID && int64(n) >= poison.Version {
				break // held for a person
			}
			want = append(want, fmt.Sprint(n))
		}
		same(t, "applied of "+order, s.log(order), want)
	}
	dead := open(t, s)
	if len(dead) != 1 || dead[0].Event.Key != poison.Key || dead[0].Place != "process" || !strings.Contains(dead[0].Error, "3 attempts") {
		t.Errorf("dead letters: %+v", dead)
	}
	same(t, "unacknowledged", src.unacked(), 0)
}

func TestAMessageThatKillsTheProcessIsFoundWithoutACountOfDeliveries(t *testing.T) {
	for _, c := range []struct {
		name    string
		src     blind
		version int // of the poison
		batch   int
		deaths  int // 0: depends on how the partitions come
	}{
		{"one partition", blind{partitions: 1}, 1, 0, 4 + 3},
		{"second of its aggregate", blind{partitions: 1}, 2, 0, 4 + 3},
		{"in the middle of what others have done", blind{partitions: 1, most: 10}, 2, 0, 1 + 4 + 3},
		{"several partitions in a batch", blind{partitions: 4}, 1, 0, 4 + 3},
		{"several partitions in turn", blind{partitions: 4, most: 7}, 2, 0, 0},
		{"the broker forgets what was acknowledged", blind{partitions: 2, most: 4, loseAcks: true}, 2, 4, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStore()
				src := c.src
				src.source = newSource()
				for n := 1; n <= 2; n++ {
					for o := range 40 {
						src.send(event(fmt.Sprint("O-", o), n))
					}
				}
				poison := event("O-17", c.version)
				cfg := inbox.Config{Redeliveries: 4, Trials: 3, Batch: c.batch}
				deaths := lives(t, s, &src, cfg, 60, src.die, func(e convergo.Event) bool { return e.Key == poison.Key })
				if c.deaths > 0 {
					same(t, "deaths", deaths, c.deaths)
				}
				buriedAlone(t, s, src.source, poison, 40, 2)
			})
		})
	}
}

// A blocked aggregate's queue: the message waits there, acknowledged, and kills whoever works the queue off.
func TestAMessageInAQueueThatKillsTheProcessIsFoundAndTheOthersOfItsQueueAreApplied(t *testing.T) {
	for _, version := range []int{1, 3} {
		bubble(t, func(t *testing.T) {
			s := newStore()
			src := &blind{source: newSource(), partitions: 1}
			for n := 1; n <= 5; n++ {
				for o := range 6 {
					src.send(event(fmt.Sprint("O-", o), n))
				}
			}
			poison := event("O-3", version)
			kills := func(e convergo.Event) bool { return e.Key == poison.Key }
			cfg := inbox.Config{Consumer: "points", Redeliveries: 4, Trials: 3}
			c := inbox.New[*memory.Tx](s, s, src, cfg)
			c.Handle("Moved", func(context.Context, *memory.Tx, convergo.Event) error { return errWeather })
			ctx, cancel := context.WithCancel(context.Background())
			result := make(chan error, 1)
			go func() { result <- c.Run(ctx) }()
			settle()
			cancel()
			same(t, "stop", <-result, nil)
			same(t, "all wait", src.unacked(), 0)
			deaths := lives(t, s, src, cfg, 60, src.die, kills)
			if deaths != 4+3 && deaths != 1+4+3 { // the first process may have noted another queue before it died
				t.Errorf("%d deaths", deaths)
			}
			buriedAlone(t, s, src.source, poison, 6, 5)
		})
	}
}

// While all goes well nothing is noted: one small transaction when a process meets a partition, and no other.
func TestAPartitionIsNotedOnceAProcess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		src := &blind{source: newSource(), partitions: 1}
		running(t, s, src, inbox.Config{Poll: time.Hour}, moved(s.effect))
		settle()
		before := s.storeCalls()
		src.send(event("O-1", 1))
		settle()
		same(t, "transactions of the first batch", s.storeCalls()-before, 2)
		before = s.storeCalls()
		for n := 2; n <= 51; n++ {
			src.send(event("O-1", n))
			settle()
		}
		same(t, "transactions of fifty more", s.storeCalls()-before, 50)
	})
}

// Stops before the first commit, and outages, count as beginnings. Whoever becomes a suspect by them comes through.
func TestInnocentsThatWereBegunTooOftenAreAppliedAllTheSame(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		src := &blind{source: newSource(), partitions: 1}
		for o := range 150 {
			src.send(event(fmt.Sprint("O-", o), 1), event(fmt.Sprint("O-", o), 2))
		}
		cfg := inbox.Config{Redeliveries: 4}
		for range 12 {
			var away sync.Once
			c := inbox.New[*memory.Tx](s, s, src, inbox.Config{Consumer: "points", Redeliveries: 4})
			ctx, cancel := context.WithCancel(context.Background())
			c.Handle("Moved", func(context.Context, *memory.Tx, convergo.Event) error {
				away.Do(cancel)
				return convergo.Unreachable(errWeather)
			})
			same(t, "run", c.Run(ctx), nil)
			src.redeliver()
		}
		same(t, "deaths", lives(t, s, src, cfg, 1, src.die, func(convergo.Event) bool { return false }), 0)
		for o := range 150 {
			same(t, "applied", s.log(fmt.Sprint("O-", o)), "[1 2]")
		}
		same(t, "dead letters", len(open(t, s)), 0)
	})
}

// Two processes share the partitions; one dies of its own again and again. The other's commits do not hide that.
func TestAHealthyInstanceDoesNotHideTheOneThatIsKilled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		healthy := &blind{source: newSource(), partitions: 4}
		sick := &blind{source: newSource(), partitions: 4}
		poison := event("O-0", 1)
		for o := range 40 {
			src := healthy
			if sick.partition(event(fmt.Sprint("O-", o), 1)) == sick.partition(poison) {
				src = sick
			}
			src.send(event(fmt.Sprint("O-", o), 1), event(fmt.Sprint("O-", o), 2))
		}
		cfg := inbox.Config{Redeliveries: 4, Trials: 3}
		kills := func(e convergo.Event) bool { return e.Key == poison.Key } // whoever gets it out of its queue
		elsewhere := lives(t, s, healthy, cfg, 1, healthy.die, kills)
		more := 0
		deaths := lives(t, s, sick, cfg, 60, func() {
			sick.die()
			more++
			healthy.send(event(fmt.Sprint("H-", more), 1)) // it commits between any two deaths
			elsewhere += lives(t, s, healthy, cfg, 1, healthy.die, kills)
		}, kills)
		same(t, "deaths of the other in the end", lives(t, s, healthy, cfg, 1, healthy.die, kills), 0)
		for i := range more {
			same(t, "the other's own", s.log(fmt.Sprint("H-", i+1)), "[1]")
		}
		same(t, "deaths", deaths+elsewhere, 4+3)
		buriedAlone(t, s, sick.source, poison, 40, 2)
	})
}
