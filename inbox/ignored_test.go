package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/store/memory"
	"github.com/convergo/convergo/testlog"
)

func TestAConsumerWithoutAnyHandlerIsRefusedBeforeItTakesAnything(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, src := newStore(), newSource(event("O-1", 1))
		c := inbox.New(s, s, src, inbox.Config{Consumer: "points"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.Run(ctx); !errors.Is(err, inbox.ErrNoHandler) || !strings.Contains(err.Error(), "points") {
			t.Errorf("error %v", err)
		}
		same(t, "fetched", c.Stats().Fetched, 0)
	})
}

func TestAMisspeltHandlerShowsInTheLogOncePerTypeAndWithinABound(t *testing.T) {
	for _, await := range []time.Duration{-1, 0} { // dismissed without a transaction, and in one
		t.Run(fmt.Sprint("await ", await), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				events := []convergo.Event{event("O-1", 1), event("O-1", 2)}
				for i := range 150 {
					e := event(fmt.Sprint("O-", 10+i), 1)
					e.Type = fmt.Sprint("Other", i)
					events = append(events, e)
				}
				var lines testlog.Lines
				s, src := newStore(), newSource(events...)
				cfg := inbox.Config{Await: await, Log: slog.New(slog.NewTextHandler(&lines, nil))}
				none := func(context.Context, *memory.Tx, convergo.Event) error { return nil }
				c, _ := running(t, s, src, cfg, map[string]inbox.Handler[*memory.Tx]{"OrderPayed": none, "OrderClosed": none})
				settle()
				same(t, "ignored", c.Stats().Ignored, int64(len(events)))
				text := lines.String()
				same(t, "lines", strings.Count(text, "type without a handler"), 100)
				same(t, "of the type", strings.Count(text, "type="+events[0].Type+" "), 1)
				same(t, "saying what is handled", strings.Count(text, `handled="[OrderClosed OrderPayed]"`), 100)
				same(t, "saying that no more are told of", strings.Count(text, `"further types"="not logged"`), 1)
			})
		})
	}
}
