package inbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/convergo/convergo"
)

// Foreign is why a consumer stands still: an event of another platform has arrived, so two platforms use the same names on one
// broker and take each other's events. Nothing of the batch that held it is applied or acknowledged, and no more is fetched
// until the process is started again: whoever of the two is right here, the other's events must stay where they are.
type Foreign struct {
	Consumer string
	Place    string       // Config.Place
	Own      string       // the consumer's platform
	Other    string       // the event's
	Key      convergo.Key // of the event
	Type     string
	At       time.Time // when it arrived
}

// Error says what is wrong and what to do, in one line.
func (f *Foreign) Error() string {
	place := ""
	if f.Place != "" {
		place = " on " + f.Place
	}
	return fmt.Sprintf("consumer %s stands still: %s %.100q of platform %s has arrived%s, and this is platform %s. If they are two platforms give "+
		"one of them another prefix, and have what it has left here passed over (--pass-over its id); if they are one, give all its "+
		"processes the same secrets (or platform id)",
		f.Consumer, f.Type, f.Key, f.Other, place, f.Own)
}

// Foreign is why the consumer stands still; nil while it does not.
func (c *Consumer[TX]) Foreign() *Foreign { return c.foreign.Load() }

// stranger is the first event that another platform has sent; nil when there is none. A malformed message whose origin cannot be a
// platform's name is no platform's: it becomes a dead letter, and cannot stop a consumer.
func (c *Consumer[TX]) stranger(deliveries []Delivery) *Foreign {
	if c.cfg.Origin == "" {
		return nil
	}
	for _, d := range deliveries {
		from := d.Event.Origin
		if from == "" || from == c.cfg.Origin || slices.Contains(c.cfg.TakeFrom, from) || c.passesOver(d.Event) ||
			d.Malformed != nil && convergo.ValidateOrigin(from) != nil {
			continue
		}
		return &Foreign{
			Consumer: c.cfg.Consumer, Place: c.cfg.Place, Own: c.cfg.Origin, Other: from, Key: d.Event.Key, Type: d.Event.Type, At: c.cfg.Now(),
		}
	}
	return nil
}

func (c *Consumer[TX]) passesOver(e convergo.Event) bool {
	return e.Origin != "" && e.Origin != c.cfg.Origin && slices.Contains(c.cfg.PassOver, e.Origin)
}

// refuse hands the batch back and waits for the end. The events before the stranger go back too: they are applied by whoever
// reads here next. Messages that are in the consumer's own queues are its own and go on.
func (c *Consumer[TX]) refuse(ctx context.Context, f *Foreign, deliveries []Delivery) {
	c.foreign.Store(f)
	c.cfg.Log.Error(f.Error(), "consumer", f.Consumer, "place", f.Place, "platform", f.Own, "other platform", f.Other)
	c.giveBack(ctx, deliveries)
	<-ctx.Done()
}
