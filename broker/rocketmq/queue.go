package rocketmq

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/convergo/convergo"
)

// queue is one queue whose lock this instance holds: from the lock until it is given back or lost. Its fields are guarded by
// the member's lock.
type queue struct {
	partition
	name   string // of it, for the inbox
	member *member
	ctx    context.Context // ends with the queue
	stop   context.CancelFunc
	room   chan struct{} // tells the puller that there may be room again

	// trusted is until when the lock is believed, counted from before the request that renewed it, by the monotonic clock.
	trusted time.Time
	// leaving: another instance shall have it. Nothing more is handed out; deadline is when it goes whatever is out.
	leaving  bool
	deadline time.Time
	gone     bool // given back or lost: nothing of it counts any more

	ready     []stored           // read, and not handed out
	bytes     int                // of them
	next      int64              // offset to read from next
	interrupt context.CancelFunc // ends the request for messages that is under way
	out       []*flight
	suspended time.Time // nothing is handed out before: something was returned with a delay
	committed int64     // what the broker knows
}

// flight is a message that was handed out, from then until it is acknowledged.
type flight struct {
	message  stored
	holder   *source // who has it; nil when it was returned
	done     bool
	times    int
	returned bool
}

// readyBytes is how much of a queue is held ready.
const readyBytes = 4 << 20

// position is the offset up to which all is done: what an instance that goes on must begin with.
func (q *queue) position() int64 {
	switch {
	case len(q.out) > 0:
		return q.out[0].message.queueOffset
	case len(q.ready) > 0:
		return q.ready[0].queueOffset
	}
	return q.next
}

// take hands out up to most messages, those that were returned first. While somebody else has messages of the queue it hands
// out none, so that no two readers have messages of one aggregate. wait is how long it takes until it is worth asking again.
func (q *queue) take(s *source, most int, now time.Time) (taken []*flight, wait time.Duration) {
	if q.gone || q.leaving || !now.Before(q.trusted) {
		return nil, 0
	}
	for _, f := range q.out {
		if f.holder != nil && f.holder != s {
			return nil, 0
		}
	}
	if wait := q.suspended.Sub(now); wait > 0 {
		return nil, wait
	}
	for _, f := range q.out {
		if f.returned && len(taken) < most {
			taken = append(taken, f)
		}
	}
	for len(taken) < most && len(q.ready) > 0 {
		f := &flight{message: q.ready[0]}
		q.ready = q.ready[1:]
		q.bytes -= len(f.message.body)
		q.out = append(q.out, f)
		taken = append(taken, f)
	}
	for _, f := range taken {
		f.holder, f.returned = s, false
		f.times++
	}
	if len(taken) > 0 {
		q.wakePuller()
	}
	return taken, 0
}

// finish marks a flight as done with and forgets those at the front that are.
func (q *queue) finish(f *flight) {
	f.done, f.holder = true, nil
	n := 0
	for n < len(q.out) && q.out[n].done {
		n++
	}
	q.out = q.out[n:]
}

// open tells whether somebody still works on messages of the queue.
func (q *queue) open() bool {
	for _, f := range q.out {
		if f.holder != nil {
			return true
		}
	}
	return false
}

func (q *queue) wakePuller() {
	select {
	case q.room <- struct{}{}:
	default:
	}
}

// pulled is one answer to a request for messages.
type pulled struct {
	messages []stored
	next     int64
}

const (
	pullMost    = 64
	pullSuspend = 15 * time.Second // how long the broker waits for a message before it answers that there is none
	pullBackoff = 300 * time.Millisecond
)

// pull reads the queue until it is gone. The broker holds a request while there is nothing new.
func (q *queue) pull() {
	for q.ctx.Err() == nil {
		ctx, from, ok := q.member.wantsMore(q)
		if !ok {
			select {
			case <-q.room:
			case <-q.ctx.Done():
			}
			continue
		}
		got, err := q.read(ctx, from)
		if ctx.Err() != nil {
			continue
		}
		q.member.arrived(q, from, got, err)
		if err != nil {
			select {
			case <-time.After(pullBackoff):
			case <-q.ctx.Done():
			}
		}
	}
}

// read asks for messages from an offset on.
func (q *queue) read(ctx context.Context, from int64) (pulled, error) {
	b := q.member.broker
	address, err := b.address(q.Broker)
	if err != nil {
		return pulled{}, err
	}
	const suspend, withSubscription = 2, 4
	answer, err := b.reading.exchange(ctx, pullSuspend+b.cfg.Timeout, address, request(codePull, fields(
		"consumerGroup", q.member.group, "topic", q.Topic, "queueId", q.Queue, "queueOffset", from, "maxMsgNums", pullMost,
		"sysFlag", suspend|withSubscription, "commitOffset", 0, "suspendTimeoutMillis", pullSuspend.Milliseconds(),
		"subscription", everything, "subVersion", 0, "expressionType", "TAG", "bname", q.Broker), nil))
	if err != nil {
		return pulled{}, err
	}
	next, err := number(answer, "nextBeginOffset")
	switch answer.Code {
	case answerSuccess:
		if err != nil {
			return pulled{}, err
		}
		messages, err := readStored(answer.body)
		return pulled{messages, next}, err
	case answerNothingNew, answerNothingMatched:
		if err != nil {
			return pulled{}, err
		}
		return pulled{nil, max(next, from)}, nil
	case answerOffsetMoved:
		return q.moved(ctx, from, answer)
	case answerNoTopic:
		b.gone(q.Topic)
	}
	return pulled{}, convergo.Unreachable(fmt.Errorf("read queue %d of %s: %w", q.Queue, q.Topic, &refusal{answer.Code, answer.Remark}))
}

// moved decides where to go on when the broker has no message at the offset. The place that it proposes is not believed: for
// an offset beyond the end, which is what remains when a broker lost its data, it is the end, and skips all that was sent
// since. The beginning of what there is skips nothing; what comes again changes nothing.
func (q *queue) moved(ctx context.Context, from int64, answer *command) (pulled, error) {
	first, err := q.member.broker.minOffset(ctx, q.partition)
	if err != nil {
		return pulled{}, err
	}
	log := q.member.broker.cfg.Log.With("consumer", q.member.consumer, "topic", q.Topic, "queue", q.Queue, "offset", from, "first", first,
		"end", answer.Fields["maxOffset"])
	if from < first {
		log.Error("messages were deleted by the broker before this consumer read them: replay them from the outbox")
	} else {
		log.Error("the broker has fewer messages than this consumer has read: it lost data; reading from the beginning, replay from the outbox")
	}
	return pulled{nil, first}, nil
}

func (b *Broker) minOffset(ctx context.Context, p partition) (int64, error) {
	address, err := b.address(p.Broker)
	if err != nil {
		return 0, err
	}
	answer, err := b.reading.call(ctx, address, request(codeMinOffset, fields("topic", p.Topic, "queueId", p.Queue, "bname", p.Broker), nil))
	if err != nil {
		return 0, fmt.Errorf("first offset of queue %d of %s: %w", p.Queue, p.Topic, err)
	}
	return number(answer, "offset")
}

// storedOffset is where the consumer stopped: the offset that the broker keeps, or the first there is.
func (m *member) storedOffset(ctx context.Context, p partition) (int64, error) {
	address, err := m.broker.address(p.Broker)
	if err != nil {
		return 0, err
	}
	answer, err := m.broker.reading.call(ctx, address, request(codeQueryOffset, fields("consumerGroup", m.group, "topic", p.Topic,
		"queueId", p.Queue, "setZeroIfNotFound", false, "bname", p.Broker), nil))
	if refusedWith(err) == answerNotFound {
		return m.broker.minOffset(ctx, p)
	}
	if err != nil {
		return 0, fmt.Errorf("position in queue %d of %s: %w", p.Queue, p.Topic, err)
	}
	return number(answer, "offset")
}

// storeOffset tells the broker where the consumer is, and waits until it has it. The broker writes it to its disk every few
// seconds: what a killed broker forgets is delivered again.
func (m *member) storeOffset(ctx context.Context, p partition, offset int64) error {
	address, err := m.broker.address(p.Broker)
	if err != nil {
		return err
	}
	_, err = m.broker.reading.call(ctx, address, request(codeUpdateOffset, fields("consumerGroup", m.group, "topic", p.Topic,
		"queueId", p.Queue, "commitOffset", offset, "bname", p.Broker), nil))
	return err
}

func number(answer *command, field string) (int64, error) {
	n, err := strconv.ParseInt(answer.Fields[field], 10, 64)
	if err != nil {
		return 0, convergo.Unreachable(fmt.Errorf("the broker's answer %d has no %s: %w", answer.Code, field, err))
	}
	return n, nil
}
