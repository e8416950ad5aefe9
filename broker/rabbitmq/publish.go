package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/convergo/convergo"
)

// Publish implements relay.Publisher. Each call has a channel of its own. Events of different aggregates are on their way
// together, Config.Window at most; of one aggregate only one at a time, so that a failure in the middle can never let a later
// one overtake it.
//
// "Unroutable" (no queue takes the event) is convergo.Unavailable: the event waits for a consumer, because only its subject lacks
// one. A refusal by a queue that is full is an outage, and so are alarms of the server and lost connections.
func (b *Broker) Publish(ctx context.Context, events []convergo.Event) []error {
	if b.cfg.LookOnly {
		return slices.Repeat([]error{errLookOnly}, len(events))
	}
	p := publication{broker: b, events: events, errs: make([]error, len(events)), returned: map[string]amqp.Return{}}
	p.chain()
	for len(p.ready) > 0 || len(p.sent) > 0 {
		for len(p.ready) > 0 && len(p.sent) < b.cfg.Window {
			i := p.ready[0]
			p.ready = p.ready[1:]
			p.send(ctx, i)
		}
		if len(p.sent) > 0 {
			f := p.sent[0]
			p.sent = p.sent[1:]
			p.settle(ctx, f)
		}
	}
	p.giveBack()
	return p.errs
}

// publication is one call of Publish.
type publication struct {
	broker   *Broker
	events   []convergo.Event
	errs     []error
	next     []int // index of the aggregate's next event, -1 for its last
	ready    []int // events whose predecessor is confirmed
	sent     []inFlight
	outlet   *outlet
	doubtful bool                   // something was sent on the outlet and its answer was not waited for
	returned map[string]amqp.Return // by number of sending
}

type inFlight struct {
	index   int
	sending string // its number on the channel
	confirm *amqp.DeferredConfirmation
	refused error // by the channel: it is not on its way, and has no confirm
}

func (p *publication) chain() {
	p.next = make([]int, len(p.events))
	last := make(map[convergo.Aggregate]int, len(p.events))
	for i, e := range p.events {
		p.next[i] = -1
		if before, ok := last[e.Aggregate]; ok {
			p.next[before] = i
		} else {
			p.ready = append(p.ready, i)
		}
		last[e.Aggregate] = i
	}
}

func (p *publication) send(ctx context.Context, i int) {
	e := p.events[i]
	if err := ctx.Err(); err != nil {
		p.fail(i, convergo.Unreachable(fmt.Errorf("publish %s: not sent: %w", e.Key, err)))
		return
	}
	if err := p.broker.check(e); err != nil {
		p.fail(i, err)
		return
	}
	if err := p.prepare(ctx, e); err != nil {
		p.fail(i, fmt.Errorf("publish %s: not sent: %w", e.Key, err))
		return
	}
	ch := p.outlet.ch
	n := ch.GetNextPublishSeqNo()
	confirm, err := ch.PublishWithDeferredConfirm(p.broker.exchange(e.Topic), p.broker.routingKey(e), true, false, encode(e, n))
	if err != nil { // the channel is closed, maybe over an earlier message: what becomes of that one decides about this one too
		p.sent = append(p.sent, inFlight{index: i, refused: err})
		return
	}
	p.broker.cfg.Probe.At("broker.sent")
	p.sent = append(p.sent, inFlight{index: i, sending: strconv.FormatUint(n, 10), confirm: confirm})
}

// prepare sees to a channel and to the topic's exchange.
func (p *publication) prepare(ctx context.Context, e convergo.Event) error {
	if why := p.broker.publish.blocked.Load(); why != nil {
		return convergo.Unreachable(fmt.Errorf("rabbitmq takes no publishes: %s", *why))
	}
	if p.outlet == nil {
		var err error
		if p.outlet, err = p.broker.takeOutlet(ctx); err != nil {
			return err
		}
	}
	return p.broker.ensureExchange(p.outlet.conn, e.Topic)
}

func (p *publication) settle(ctx context.Context, f inFlight) {
	e := p.events[f.index]
	if f.refused != nil {
		if !p.resend(f) {
			p.doubtful = true
			p.fail(f.index, convergo.Unreachable(fmt.Errorf("publish %s: %w", e.Key, p.outlet.why(f.refused))))
		}
		return
	}
	var err error
	select {
	case <-f.confirm.Done():
		if p.resend(f) {
			return
		}
		err = p.judge(e, f)
	case <-ctx.Done():
		p.doubtful = true
		err = convergo.Unreachable(fmt.Errorf("no confirmation: %w", ctx.Err()))
		if why := p.broker.publish.blocked.Load(); why != nil {
			err = convergo.Unreachable(fmt.Errorf("rabbitmq takes no publishes: %s: %w", *why, err))
		}
	case <-p.broker.closed:
		p.doubtful = true
		err = convergo.Unreachable(errClosed)
	}
	if err != nil {
		p.fail(f.index, fmt.Errorf("publish %s: %w", e.Key, err))
		return
	}
	if following := p.next[f.index]; following >= 0 {
		p.ready = append(p.ready, following)
	}
}

// judge looks at an answer. The server sends a return before the confirmation of the same message and the library hands them
// on in that order, so that once the confirmation is here its return, if there is one, waits in the outlet: it overrides
// the confirmation.
func (p *publication) judge(e convergo.Event, f inFlight) error {
	for more := true; more; {
		select {
		case r, open := <-p.outlet.returns:
			if more = open; open {
				p.returned[r.CorrelationId] = r
			}
		default:
			more = false
		}
	}
	if r, back := p.returned[f.sending]; back {
		delete(p.returned, f.sending)
		if p.broker.cfg.unclaimed(e) {
			return nil
		}
		return convergo.Unavailable(fmt.Errorf("unroutable: no queue is bound for %s (%s): it waits for a consumer that subscribes; or name "+
			"the subject in --unclaimed (Config.Unclaimed)", convergo.Subject{Topic: e.Topic, Type: e.Type}, r.ReplyText))
	}
	switch {
	case f.confirm.Acked():
		return nil
	case p.outlet.ch.IsClosed():
		err := p.outlet.why(errors.New("the connection was lost before the confirmation"))
		if refused(err, amqp.NotFound) { // somebody deleted an exchange
			p.broker.forgetExchanges()
		}
		return convergo.Unreachable(err)
	default:
		return convergo.Unreachable(errors.New("a queue refused it (nack): it is full, or its node has trouble"))
	}
}

// tooLarge is how the server says why it closed a channel over one message.
var tooLarge = regexp.MustCompile(`message size (\d+) .*larger than .*size (\d+)`)

// resend handles a channel that the server closed because one of the messages is above its limit: that one is refused for good by
// the check before it is sent again, and the others, blameless, go out on another channel.
func (p *publication) resend(f inFlight) bool {
	if f.refused == nil && f.confirm.Acked() || !p.outlet.ch.IsClosed() {
		return false
	}
	var e *amqp.Error
	if !errors.As(p.outlet.why(nil), &e) || e.Code != amqp.PreconditionFailed {
		return false
	}
	sizes := tooLarge.FindStringSubmatch(e.Reason)
	if sizes == nil {
		return false
	}
	limit, err := strconv.ParseInt(sizes[2], 10, 64)
	if err != nil || !slices.ContainsFunc(append(p.sent, f), func(f inFlight) bool { return int64(len(p.events[f.index].Payload)) > limit }) {
		return false
	}
	p.broker.largest.Store(limit)
	again := []int{f.index}
	for _, s := range p.sent {
		again = append(again, s.index)
	}
	p.sent, p.ready, p.outlet = nil, append(again, p.ready...), nil
	clear(p.returned)
	return true
}

// fail records the failure and refuses the aggregate's later events. They share an outage; another verdict is not theirs.
func (p *publication) fail(i int, err error) {
	p.errs[i] = err
	for j := p.next[i]; j >= 0; j = p.next[j] {
		late := fmt.Errorf("publish %s: not sent, because %s before it failed", p.events[j].Key, p.events[i].Key)
		if convergo.VerdictOf(err) == convergo.Outage {
			late = convergo.Unreachable(late)
		}
		p.errs[j] = late
	}
}

// giveBack keeps the channel for the next call, unless answers may still come on it.
func (p *publication) giveBack() {
	switch {
	case p.outlet == nil:
	case p.doubtful || p.outlet.ch.IsClosed():
		discard(p.outlet.ch)
	default:
		p.broker.mu.Lock()
		p.broker.idle = append(p.broker.idle, p.outlet)
		p.broker.mu.Unlock()
	}
}

func (b *Broker) check(e convergo.Event) error {
	limit := convergo.MaxPayloadBytes
	if n := int(b.largest.Load()); n > 0 {
		limit = min(limit, n)
	}
	if n := len(e.Payload); n > limit {
		return convergo.Permanent(fmt.Errorf("publish %s: payload too large for the broker: %d > %d bytes", e.Key, n, limit))
	}
	if err := e.Validate(); err != nil {
		return convergo.Permanent(fmt.Errorf("publish: %w", err))
	}
	return nil
}

// outlet is a channel in confirm mode that one Publish at a time has.
type outlet struct {
	conn    *amqp.Connection
	ch      *amqp.Channel
	returns chan amqp.Return // room for a whole window: the library's reader must never wait for us
	ended   chan *amqp.Error
	end     *amqp.Error // what ended had
}

// why is the server's reason for the channel's end, or else err.
func (o *outlet) why(err error) error {
	select {
	case e := <-o.ended:
		if e != nil {
			o.end = e
		}
	default:
	}
	if o.end != nil {
		return o.end
	}
	return err
}

func (b *Broker) takeOutlet(ctx context.Context) (*outlet, error) {
	conn, err := b.publish.get(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.intact(ctx, conn); err != nil {
		return nil, err
	}
	b.mu.Lock()
	for len(b.idle) > 0 {
		o := b.idle[len(b.idle)-1]
		b.idle = b.idle[:len(b.idle)-1]
		if o.conn == conn && !o.ch.IsClosed() {
			b.mu.Unlock()
			return o, nil
		}
	}
	b.mu.Unlock()
	ch, err := conn.Channel()
	if err != nil {
		return nil, outage(err)
	}
	o := &outlet{
		conn: conn, ch: ch, returns: ch.NotifyReturn(make(chan amqp.Return, b.cfg.Window)), ended: ch.NotifyClose(make(chan *amqp.Error, 1)),
	}
	if err := ch.Confirm(false); err != nil {
		discard(ch)
		return nil, outage(err)
	}
	return o, nil
}

func outage(err error) error { return convergo.Unreachable(err) }
