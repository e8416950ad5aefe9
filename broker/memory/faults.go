package memory

import (
	"errors"

	"github.com/convergo/convergo"
)

// faults is what is to go wrong. The broker's lock guards it.
type faults struct {
	outage     bool
	failNext   int
	failure    error
	refuse     func(convergo.Event) error
	noConfirms int
	noAcks     int
	twice      int
}

// Outage turns an outage on or off: Publish, Fetch, Ack and Return fail with the verdict "unreachable".
func (b *Broker) Outage(on bool) { b.set(func(f *faults) { f.outage = on }) }

// FailNext makes the next n publishes of an event fail with err (default: an error without a verdict); nothing is stored.
func (b *Broker) FailNext(n int, err error) {
	b.set(func(f *faults) { f.failNext, f.failure = n, err })
}

// RefuseIf makes every publish for which refuse returns an error fail with it; nothing is stored. nil ends it.
func (b *Broker) RefuseIf(refuse func(convergo.Event) error) {
	b.set(func(f *faults) { f.refuse = refuse })
}

// LoseConfirms stores the next n events and answers that they were not confirmed.
func (b *Broker) LoseConfirms(n int) { b.set(func(f *faults) { f.noConfirms = n }) }

// LoseAcks takes the next n acknowledgements and forgets them, so that the messages come again.
func (b *Broker) LoseAcks(n int) { b.set(func(f *faults) { f.noAcks = n }) }

// DeliverTwice delivers each of the next n messages again with the next Fetch, acknowledged or not.
func (b *Broker) DeliverTwice(n int) { b.set(func(f *faults) { f.twice = n }) }

func (b *Broker) set(change func(*faults)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.faults)
	b.wake()
}

var errFault = errors.New("the broker refuses, as a test asked it to")

func (f *faults) publish(e convergo.Event) error {
	if f.outage {
		return convergo.Unreachable(errOutage)
	}
	if f.failNext > 0 {
		f.failNext--
		if f.failure != nil {
			return f.failure
		}
		return errFault
	}
	if f.refuse != nil {
		return f.refuse(e)
	}
	return nil
}

func (f *faults) loseConfirm() bool  { return spend(&f.noConfirms) }
func (f *faults) loseAck() bool      { return spend(&f.noAcks) }
func (f *faults) deliverTwice() bool { return spend(&f.twice) }

func spend(n *int) bool {
	if *n == 0 {
		return false
	}
	*n--
	return true
}
