package rabbitmq

import (
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/convergo/convergo"
)

// partition is an instance's view of one of a consumer's queues. The subscription's lock guards it.
type partition struct {
	n  int
	ch *amqp.Channel // nil while it is not open
	// letters were delivered on ch and are not acknowledged to the server, in the order of delivery.
	letters []*letter
	holder  *source // has the letters that are out; nobody else gets any while there are some
	out     int     // letters that are out
	active  bool    // the server delivers this queue to us
	leaving bool    // it is to be given to another instance as soon as nothing is out
}

// letter is one delivery. It belongs to the channel on which it came.
type letter struct {
	ch       *amqp.Channel
	delivery amqp.Delivery
	event    convergo.Event
	fault    error // of a malformed one
	state    state
	due      time.Time // when it may be handed out again; zero: now
	returns  int       // how often it was handed back
}

type state uint8

const (
	here state = iota // to be handed out
	out               // handed out
	done              // acknowledged by the consumer, not yet to the server
)

// take hands out up to most letters to the source. A letter whose time has not come holds back the later ones of its
// aggregate. next is when the first one of those becomes due, zero when none waits.
func (p *partition) take(s *source, most int, now time.Time) (taken []*letter, next time.Time) {
	if p.ch == nil || p.leaving || p.out > 0 && p.holder != s {
		return nil, time.Time{}
	}
	var waits map[convergo.Aggregate]bool
	for _, l := range p.letters {
		if len(taken) == most {
			break
		}
		if l.state != here || waits[l.event.Aggregate] {
			continue
		}
		if l.due.After(now) {
			if waits == nil {
				waits = map[convergo.Aggregate]bool{}
			}
			waits[l.event.Aggregate] = true
			if next.IsZero() || l.due.Before(next) {
				next = l.due
			}
			continue
		}
		l.state = out
		taken = append(taken, l)
	}
	if len(taken) > 0 {
		p.holder = s
		p.out += len(taken)
	}
	return taken, next
}

// settled removes the letters that are done and tells the tags to acknowledge: one up to which all are, and single ones after it.
func (p *partition) settled() (upTo uint64, single []uint64) {
	i := 0
	for ; i < len(p.letters) && p.letters[i].state == done; i++ {
		upTo = p.letters[i].delivery.DeliveryTag
	}
	p.letters = p.letters[i:]
	p.letters = slices.DeleteFunc(p.letters, func(l *letter) bool {
		if l.state == done {
			single = append(single, l.delivery.DeliveryTag)
		}
		return l.state == done
	})
	return upTo, single
}

// back takes every letter that the source has back, to be handed out again.
func (p *partition) back(s *source) {
	if p.holder != s {
		return
	}
	for _, l := range p.letters {
		if l.state == out {
			l.state = here
			l.returns++
		}
	}
	p.out, p.holder = 0, nil
}

// forget drops what came on a channel that is gone: the server delivers it again.
func (p *partition) forget() {
	p.ch, p.letters, p.holder, p.out, p.active, p.leaving = nil, nil, nil, 0, false, false
}
