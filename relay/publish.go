package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/convergo/convergo"
)

// mostAbandoned is how many calls of Publish may be given up without having returned. Beyond it nothing is published,
// because each holds a goroutine and its events.
const mostAbandoned = 64

var errNoAnswer = errors.New("no answer")

// publish calls the publisher and returns one error per event, whatever the publisher does. It returns soon after
// Config.PublishTimeout, or after ctx ends, even if the publisher does not. hung means that there is no telling which
// event was to blame: all of them have the same error.
//
// A call that was given up may still be sending. An event of it that is tried again can then arrive twice, or late; a
// consumer tells by its key and its aggregate version.
func (s *session) publish(ctx context.Context, pending []Pending) (errs []error, hung bool) {
	if n := s.calls.Load() - int64(s.cfg.Workers); n >= mostAbandoned {
		err := fmt.Errorf("%d calls of the publisher were given up and have not returned: %w", n, errNoAnswer)
		return repeat(convergo.Unreachable(err), len(pending)), false
	}
	events := make([]convergo.Event, len(pending))
	for i, p := range pending {
		events[i] = p.Event
		events[i].Position, events[i].Origin = p.Seq, s.cfg.Origin
	}
	limit := s.cfg.PublishTimeout
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	type answer struct {
		errs  []error
		fault error
	}
	answers := make(chan answer, 1)
	s.calls.Add(1)
	s.hands.do(func() {
		defer s.calls.Add(-1)
		errs, fault := s.call(ctx, events)
		answers <- answer{errs, fault}
	})
	var a answer
	select {
	case a = <-answers:
	case <-ctx.Done():
		// A publisher that heeds its context now tells which events were confirmed. It gets a moment for that.
		patience := time.NewTimer(min(time.Second, limit/10))
		defer patience.Stop()
		select {
		case a = <-answers:
		case <-patience.C:
			a.fault = fmt.Errorf("%w from the publisher within %v: %w", errNoAnswer, limit, ctx.Err())
		}
	}
	if a.fault != nil {
		return repeat(a.fault, len(events)), true
	}
	return a.errs, false
}

// call makes an error of a panic and of an answer of the wrong length.
func (r *Relay) call(ctx context.Context, events []convergo.Event) (errs []error, fault error) {
	defer func() {
		if p := recover(); p != nil {
			errs, fault = nil, fmt.Errorf("the publisher panicked: %v", p)
		}
	}()
	errs = r.publisher.Publish(ctx, events)
	if len(errs) != len(events) {
		return nil, fmt.Errorf("the publisher answered for %d of %d events, so that nobody knows which were sent", len(errs), len(events))
	}
	return errs, nil
}

func repeat(err error, n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}
