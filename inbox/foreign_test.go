package inbox_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/testlog"
)

// from is an event that the platform's relay has sent.
func from(platform string, e convergo.Event) convergo.Event {
	e.Origin = platform
	return e
}

func TestAnEventOfAnotherPlatformStopsTheConsumerAndNothingIsAcknowledged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		src := newSource(from("north", event("O-1", 1)), from("south", event("O-2", 1)), from("north", event("O-3", 1)))
		var log testlog.Lines
		c, stop := running(t, s, src, inbox.Config{
			Origin: "north", Place: "nats://broker, prefix ev", Log: slog.New(slog.NewTextHandler(&log, nil)),
		}, moved(s.effect))
		settle()
		src.send(from("south", event("O-4", 1)))
		pass(time.Hour)
		same(t, "acknowledged", src.ackedKeys(), []convergo.Key{})
		same(t, "held back", src.held(), 0)
		same(t, "for whoever reads next", src.unacked(), 4)
		same(t, "applied", c.Stats().Applied, 0)
		f := c.Foreign()
		if f == nil || f.Own != "north" || f.Other != "south" || f.Key != "Moved:O-2:v1" || f.Consumer != "points" {
			t.Fatalf("the reason is %+v", f)
		}
		same(t, "stop", stop(), nil)
		for _, words := range []string{"prefix ev", "north", "south", "another prefix", "--pass-over", "the same secrets"} {
			if !strings.Contains(log.String(), words) {
				t.Errorf("the log does not say %q: %s", words, log.String())
			}
		}
		same(t, "lines of the log", strings.Count(log.String(), "\n"), 1)
	})
}

func TestAMessageWhoseOriginIsNoNameIsADeadLetterAndStopsNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		wire := from("\x00\xff garbage", event("O-1", 1)).Wire()
		garbled, err := convergo.FromWire(wire, []byte("x"))
		if err == nil {
			t.Fatal("an origin that is no name is taken")
		}
		src := newSource()
		src.deliver(inbox.Delivery{Event: garbled, Malformed: err})
		src.send(from("north", event("O-2", 1)))
		c, _ := running(t, s, src, inbox.Config{Origin: "north"}, moved(s.effect))
		settle()
		same(t, "the next", s.log("O-2"), "[1]")
		same(t, "dead", c.Stats().Dead, 1)
		same(t, "foreign", c.Foreign() == nil, true)

		other := from("south", event("O-3", 1)) // what can be read of a malformed one is another platform's all the same
		src.deliver(inbox.Delivery{Event: other, Malformed: errWeather})
		settle()
		same(t, "foreign", c.Foreign() != nil, true)
	})
}

func TestEventsOfThisPlatformAndThoseWithoutAnOriginPass(t *testing.T) {
	for name, cfg := range map[string]inbox.Config{
		"a consumer with a platform": {Origin: "north", TakeFrom: []string{"north-before"}, PassOver: []string{"south", "north"}},
		"one without takes all":      {},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStore()
				src := newSource(from("north", event("O-1", 1)), from("", event("O-1", 2)), from("north-before", event("O-1", 3)))
				c, _ := running(t, s, src, cfg, moved(s.effect))
				settle()
				same(t, "applied", s.log("O-1"), []string{"1", "2", "3"})
				same(t, "stands still", c.Foreign() == nil, true)
			})
		})
	}
}

func TestWhatAnotherPlatformHasLeftIsPassedOverWhenTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		src := newSource(from("south", event("O-1", 1)), from("north", event("O-1", 1)))
		c, _ := running(t, s, src, inbox.Config{Origin: "north", PassOver: []string{"south"}}, moved(s.effect))
		settle()
		same(t, "applied", s.log("O-1"), []string{"1"})
		same(t, "acknowledged", len(src.ackedKeys()), 2)
		same(t, "ignored, and no duplicate", []int64{c.Stats().Ignored, c.Stats().Duplicates}, []int64{1, 0})
	})
}
