package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

// Subscribe makes the consumer's groups on the topics where they are new, with everything that the streams still hold, and
// otherwise goes on where the consumer stopped. It gets all events of the topics, whatever their types: which are wanted only the inbox
// can tell, as long as instances of another version of the program read with it. The source takes partitions when it is first asked for events and gives them
// back when it is closed or not asked any more; sources of one consumer, in this process or others, share them evenly.
func (b *Broker) Subscribe(ctx context.Context, consumer string, subjects []convergo.Subject) (inbox.Source, error) {
	if b.cfg.LookOnly {
		return nil, fmt.Errorf("subscribe %s: %w", consumer, errLookOnly)
	}
	if consumer == "" || len(consumer) > convergo.MaxKeyBytes {
		return nil, fmt.Errorf("subscribe: the consumer's name %q has not between 1 and %d bytes", consumer, convergo.MaxKeyBytes)
	}
	if len(subjects) == 0 {
		return nil, fmt.Errorf("subscribe %s: no subjects: a consumer needs at least one", consumer)
	}
	s := &source{
		broker: b, consumer: consumer, turn: make(chan struct{}, 1),
		news: make(chan struct{}, 1), kick: make(chan struct{}, 1), done: make(chan struct{}), acks: map[*partition]map[string]bool{},
	}
	for _, subject := range subjects {
		if err := subject.Validate(); err != nil {
			return nil, fmt.Errorf("subscribe %s: %w", consumer, err)
		}
		if slices.Contains(s.topics, subject.Topic) {
			continue
		}
		if err := b.prepare(ctx, subject.Topic); err != nil {
			return nil, fmt.Errorf("subscribe %s: %w", consumer, err)
		}
		if err := b.groups(ctx, subject.Topic, consumer); err != nil {
			return nil, fmt.Errorf("subscribe %s: %w", consumer, err)
		}
		s.topics = append(s.topics, subject.Topic)
		for n := range b.cfg.Partitions {
			p := &partition{topic: subject.Topic, number: n, stream: b.streamKey(subject.Topic, n), lease: b.leaseKey(subject.Topic, n, consumer)}
			p.drop()
			s.parts = append(s.parts, p)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx.Err() != nil {
		return nil, fmt.Errorf("subscribe %s: %w", consumer, errClosed)
	}
	b.members++
	s.instance = fmt.Sprint(b.instance, ".", b.members)
	b.sources[s] = true
	return s, nil
}

var errClosed = errors.New("the source is closed")

// source is one instance of a consumer.
type source struct {
	broker   *Broker
	consumer string
	instance string
	topics   []string

	turn chan struct{} // held by the Fetch that reads
	news chan struct{} // something may be there to read
	kick chan struct{} // the heart should beat now

	// line is held over an exchange with the server that reads or acknowledges: an entry whose acknowledgement is on its way must
	// not be met by a takeover that the server answers first and this process hears of later. It is taken before mu.
	line sync.Mutex

	mu        sync.Mutex
	parts     []*partition
	first     int // where the next look begins, so that every partition gets its turn
	fetching  bool
	active    time.Time // when a Fetch last began or ended
	beating   bool
	beats     sync.WaitGroup
	listening bool
	acks      map[*partition]map[string]bool // to be sent
	flushing  bool
	closed    bool
	done      chan struct{} // closed with it
}

// Fetch implements inbox.Source.
func (s *source) Fetch(ctx context.Context, most int) ([]inbox.Delivery, error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, s.outage(ctx.Err())
	}
	defer func() { <-s.turn }()
	if err := s.begin(); err != nil {
		return nil, s.outage(err)
	}
	defer s.end()
	for {
		if err := ctx.Err(); err != nil {
			return nil, s.outage(err)
		}
		if got := s.pick(max(most, 1)); len(got) > 0 {
			return got, nil
		}
		got, wait, err := s.look(ctx, max(most, 1))
		if len(got) > 0 {
			return got, nil // an error shows itself again
		}
		if got = s.pick(max(most, 1)); len(got) > 0 {
			return got, nil
		}
		if err != nil {
			return nil, s.outage(err)
		}
		s.listen()
		if err := s.await(ctx, wait); err != nil {
			return nil, s.outage(err)
		}
	}
}

func (s *source) outage(err error) error {
	return fmt.Errorf("fetch for %s: %w", s.consumer, convergo.Unreachable(err))
}

// begin makes the source live: its heart takes and keeps leases while it is asked for events.
func (s *source) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	s.fetching, s.active = true, time.Now()
	if !s.beating {
		s.beating = true
		s.beats.Go(s.beat)
	}
	return nil
}

func (s *source) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fetching, s.active = false, time.Now()
}

// await waits until there may be something to read.
func (s *source) await(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-s.news:
	case <-timer.C:
	case <-s.done:
		return errClosed
	case <-ctx.Done():
	}
	return nil
}

// signal puts a token into a channel of one place.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// store keeps what was read to be handed out, with how often each was. The caller holds the lock.
func (s *source) store(p *partition, entries []entry, attempts func(i int) int) {
	for i, e := range entries {
		if p.out[e.id] != nil || s.acks[p][e.id] {
			continue // a takeover after a lost answer meets what is here already
		}
		p.ready = append(p.ready, readied{e, attempts(i)})
	}
}

// pick hands out what was read, partition by partition. A partition that has entries to be handed out again waits for them.
func (s *source) pick(most int) (got []inbox.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for i := range s.parts {
		p := s.parts[(s.first+i)%len(s.parts)]
		if p.value == "" || p.leaving || len(p.again) > 0 || !p.trusted.After(now) {
			continue
		}
		for len(p.ready) > 0 && len(got) < most {
			r := p.ready[0]
			p.ready = p.ready[1:]
			got = append(got, s.hand(p, r.entry, r.attempt, now))
		}
	}
	return got
}

// hand makes a delivery of an entry. The caller holds the lock.
func (s *source) hand(p *partition, e entry, attempt int, now time.Time) inbox.Delivery {
	event, malformed := e.event()
	value := p.value
	p.out[e.id] = &flight{due: now.Add(s.broker.cfg.AckWait)}
	return inbox.Delivery{
		Event: event, Malformed: malformed, Attempt: attempt,
		Ack:    func(context.Context) error { return s.ack(p, value, e.id) },
		Return: func(_ context.Context, delay time.Duration) error { return s.giveBack(p, value, e.id, delay) },
	}
}

// ack notes that the entry is done with; notes are sent together, a moment later. It holds also when the partition was lost
// meanwhile: what is done with is done with, whoever reads now.
func (s *source) ack(p *partition, value, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	s.note(p, id)
	if p.value == value {
		delete(p.out, id)
		delete(p.again, id)
		if p.leaving && len(p.out) == 0 {
			signal(s.kick)
		}
	}
	return nil
}

// giveBack keeps the entry to be handed out again. Until then its partition hands out nothing newer. A new holder of the
// partition has it already.
func (s *source) giveBack(p *partition, value, id string, delay time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := p.out[id]
	if p.value != value || f == nil {
		return nil
	}
	delete(p.out, id)
	f.due = time.Now().Add(max(delay, 0))
	p.again[id] = f
	signal(s.news)
	if p.leaving && len(p.out) == 0 {
		signal(s.kick)
	}
	return nil
}

// An acknowledgement waits flushAfter for others to travel with, and flushAgain when the server could not be reached.
const (
	flushAfter = 5 * time.Millisecond
	flushAgain = 250 * time.Millisecond
)

// flushSoon lets the notes be sent. The caller holds the lock.
func (s *source) flushSoon(wait time.Duration) {
	if s.flushing || len(s.acks) == 0 || s.closed {
		return
	}
	s.flushing = true
	time.AfterFunc(wait, func() {
		s.line.Lock()
		err := s.flush(context.Background())
		s.line.Unlock()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.flushing = false
		if err != nil {
			s.flushSoon(flushAgain)
		} else {
			s.flushSoon(flushAfter)
		}
	})
}

// flush sends the notes; what cannot be sent stays noted. The caller holds the line.
func (s *source) flush(ctx context.Context) error {
	s.mu.Lock()
	sent := make(map[*partition][]string, len(s.acks))
	for p, ids := range s.acks {
		for id := range ids {
			sent[p] = append(sent[p], id)
		}
	}
	s.mu.Unlock()
	if len(sent) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.broker.cfg.Timeout)
	defer cancel()
	pipe := s.broker.client.Pipeline()
	for p, ids := range sent {
		pipe.XAck(ctx, p.stream, s.consumer, ids...)
	}
	if _, err := pipe.Exec(ctx); err != nil && !missing(err) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
		return fmt.Errorf("acknowledge for %s: %w", s.consumer, verdict(err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, ids := range sent {
		for _, id := range ids {
			delete(s.acks[p], id)
		}
		if len(s.acks[p]) == 0 {
			delete(s.acks, p)
		}
	}
	return nil
}

// note keeps an acknowledgement to be sent. The caller holds the lock.
func (s *source) note(p *partition, id string) {
	if s.acks[p] == nil {
		s.acks[p] = map[string]bool{}
	}
	s.acks[p][id] = true
	s.flushSoon(flushAfter)
}
