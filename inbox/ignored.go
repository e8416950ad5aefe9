package inbox

import (
	"errors"
	"maps"
	"slices"
	"sync"
)

// ErrNoHandler is returned by Run when Handle was never called: every event would be acknowledged and none applied.
var ErrNoHandler = errors.New("no handler: call Handle for each event type that is to be applied, before Run")

// ignored are the types without a handler that were told of. Both of Run's loops meet them.
type ignored struct {
	mu    sync.Mutex
	types map[string]bool
}

// mostIgnored bounds how many types are told of: their names come from outside.
const mostIgnored = 100

// first tells whether the type is to be told of, and whether it is the last one that will be.
func (i *ignored) first(eventType string) (first, last bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.types[eventType] || len(i.types) >= mostIgnored {
		return false, false
	}
	if i.types == nil {
		i.types = map[string]bool{}
	}
	i.types[eventType] = true
	return true, len(i.types) == mostIgnored
}

// ignore logs the first event of a type that is ignored. That is as it should be where a consumer reads a whole topic and wants
// some of it; but it is also how a handler shows whose type is misspelt, and the event is gone for this consumer.
func (c *Consumer[TX]) ignore(eventType string) {
	first, last := c.ignored.first(eventType)
	if !first {
		return
	}
	args := []any{"consumer", c.cfg.Consumer, "type", eventType, "handled", slices.Sorted(maps.Keys(c.handlers))}
	if last {
		args = append(args, "further types", "not logged")
	}
	c.cfg.Log.Info("events of a type without a handler are ignored", args...)
}
