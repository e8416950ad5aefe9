package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

// ahead is how many records are taken from the client at a time at most.
const ahead = 512

// mostOwed is how many acknowledgements may wait to be committed while more is handed out.
const mostOwed = 100

// mostWait is how long a Fetch waits before it looks again without a reason.
const mostWait = time.Second

// Subscribe makes the topics where they are new. A consumer that is new gets everything that they hold, another one goes on
// where it stopped. It gets all events of the topics, whatever their types: which are wanted only the inbox can tell, as long as
// instances of another version of the program read with it. The source joins its group when it is first asked for events and
// leaves it when it is closed or not asked any more; sources of one consumer, in this process or others, share the partitions.
func (b *Broker) Subscribe(ctx context.Context, consumer string, subjects []convergo.Subject) (inbox.Source, error) {
	if consumer == "" || len(b.groupName(consumer)) > convergo.MaxKeyBytes {
		return nil, fmt.Errorf("subscribe: the consumer's name %q has not between 1 and %d bytes with its prefix", consumer, convergo.MaxKeyBytes)
	}
	if len(subjects) == 0 {
		return nil, fmt.Errorf("subscribe %s: no subjects: a consumer needs at least one", consumer)
	}
	s := &source{
		broker: b, consumer: consumer, turn: make(chan struct{}, 1), news: make(chan struct{}, 1),
		hungry: make(chan struct{}, 1), settled: make(chan struct{}, 1), done: make(chan struct{}), parts: map[place]*partition{},
	}
	for _, subject := range subjects {
		if err := subject.Validate(); err != nil {
			return nil, fmt.Errorf("subscribe %s: %w", consumer, err)
		}
		if slices.Contains(s.topics, subject.Topic) {
			continue
		}
		if _, err := b.prepare(ctx, subject.Topic); err != nil {
			return nil, fmt.Errorf("subscribe %s: %w", consumer, err)
		}
		s.topics = append(s.topics, subject.Topic)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, fmt.Errorf("subscribe %s: %w", consumer, errClosed)
	}
	b.sources[s] = true
	return s, nil
}

var (
	errClosed = errors.New("the source is closed")
	errMoved  = errors.New("its partition belongs to another instance now")
)

// place names a partition in Kafka.
type place struct {
	topic  string
	number int32
}

// source is one instance of a consumer.
type source struct {
	broker   *Broker
	consumer string
	topics   []string

	turn       chan struct{} // held by the Fetch that reads, and by whoever ends the membership
	news       chan struct{} // something may be there to hand out
	hungry     chan struct{} // a Fetch has nothing to hand out
	settled    chan struct{} // a delivery was acknowledged or returned
	done       chan struct{} // closed by Close
	committing sync.Mutex    // held over a commit; taken before mu

	mu       sync.Mutex
	member   *member // nil: not in the group
	parts    map[place]*partition
	first    int // where the next look begins, so that every partition gets its turn
	fetching bool
	active   time.Time // when a Fetch last ended
	soon     bool      // a commit is on its way
	owed     int       // acknowledgements since the last commit
	trouble  error     // of the reader, for the next Fetch
	closed   bool
}

// Fetch implements inbox.Source.
func (s *source) Fetch(ctx context.Context, most int) ([]inbox.Delivery, error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, s.outage(ctx.Err())
	}
	defer func() { <-s.turn }()
	m, err := s.begin(ctx)
	if err != nil {
		return nil, s.outage(err)
	}
	defer s.end()
	if s.owes(most) {
		if err := s.commit(ctx); err != nil && !moved(err) {
			return nil, s.outage(err)
		}
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, s.outage(err)
		}
		if m.replaced.Load() {
			if m, err = s.begin(ctx); err != nil {
				return nil, s.outage(err)
			}
		}
		got, wait := s.pick(m, max(most, 1))
		if len(got) > 0 {
			return got, nil
		}
		if err := s.takeTrouble(); err != nil {
			return nil, s.outage(err)
		}
		signal(s.hungry)
		timer := time.NewTimer(wait)
		select {
		case <-s.news:
		case <-timer.C:
		case <-ctx.Done():
		case <-s.done:
			err = errClosed
		}
		timer.Stop()
		if err != nil {
			return nil, s.outage(err)
		}
	}
}

// owes tells whether what is done must be committed before more is handed out: a process that dies leaves one batch to be
// delivered again, or mostOwed events where batches are smaller.
func (s *source) owes(most int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owed > 0 && s.owed+most > max(most, mostOwed)
}

// moved tells of a commit that the group refuses because it is dividing partitions anew, or has taken this member for dead.
// Nothing is lost: what is not committed is delivered again.
func moved(err error) bool {
	return errors.Is(err, kerr.RebalanceInProgress) || errors.Is(err, kerr.IllegalGeneration) || errors.Is(err, kerr.UnknownMemberID) ||
		errors.Is(err, kerr.FencedInstanceID) || errors.Is(err, kerr.StaleMemberEpoch)
}

func (s *source) outage(err error) error {
	return fmt.Errorf("fetch for %s: %w", s.consumer, convergo.Unreachable(err))
}

func (s *source) begin(ctx context.Context) (*member, error) {
	s.mu.Lock()
	m := s.member
	if s.closed {
		s.mu.Unlock()
		return nil, errClosed
	}
	s.fetching = true
	s.mu.Unlock()
	if m != nil && !m.replaced.Load() {
		return m, nil
	}
	if m != nil {
		if err := s.leave(m); err != nil {
			s.broker.cfg.Log.Debug("kafka broker: a member whose topic is gone has left its group without a good-bye", "consumer", s.consumer, "error", err)
		}
	}
	m, err := s.join(ctx)
	if err != nil {
		s.end()
	}
	return m, err
}

func (s *source) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fetching, s.active = false, time.Now()
	if s.member != nil {
		s.parkAfter(s.member, s.broker.cfg.Session)
	}
}

// parkAfter lets the source leave its group when nobody has asked it for events for as long as a session, and nothing is out
// whose time is not over: its partitions are for instances that read. The caller holds the lock.
func (s *source) parkAfter(m *member, wait time.Duration) {
	if m.watched {
		return
	}
	m.watched = true
	time.AfterFunc(wait, func() {
		s.mu.Lock()
		m.watched = false
		if s.closed || s.member != m || s.fetching {
			s.mu.Unlock()
			return // Close, or the end of that Fetch, sees to it
		}
		now := time.Now()
		left := s.broker.cfg.Session - now.Sub(s.active)
		for _, p := range s.parts {
			if p.busy(now) {
				left = max(left, s.broker.cfg.Session/4)
			}
		}
		if left > 0 {
			s.parkAfter(m, left)
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		s.park(m)
	})
}

func (s *source) park(m *member) {
	select {
	case s.turn <- struct{}{}:
	default:
		return // a Fetch has begun
	}
	defer func() { <-s.turn }()
	s.mu.Lock()
	idle := s.member == m && !s.closed && !s.fetching && time.Since(s.active) >= s.broker.cfg.Session
	s.mu.Unlock()
	if !idle {
		return
	}
	if err := s.leave(m); err != nil {
		s.broker.cfg.Log.Debug("kafka broker: an idle source has left its group without a good-bye", "consumer", s.consumer, "error", err)
	}
}

// signal puts a token into a channel of one place.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (s *source) takeTrouble() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.trouble
	s.trouble = nil
	return err
}

// received keeps what the client has read.
func (s *source) received(m *member, fetches kgo.Fetches) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.member != m || m.replaced.Load() {
		return
	}
	fetches.EachError(func(topic string, number int32, err error) {
		var loss *kgo.ErrDataLoss
		switch {
		case errors.Is(err, context.Canceled), errors.Is(err, kgo.ErrClientClosed), errors.Is(err, errReplaced):
		case errors.Is(err, kerr.UnknownTopicID): // made anew, or not known to all nodes yet: watch sees which
			m.strange.Store(true)
		case kerr.IsRetriable(err): // the client tries again, as after a coordinator that is loading
			s.broker.cfg.Log.Debug("kafka broker: fetch", "consumer", s.consumer, "error", err)
		case errors.As(err, &loss):
			s.broker.report(Loss{Topic: s.broker.ours(topic), Partition: int(number), Consumer: s.consumer, Events: max(loss.ConsumedTo-loss.ResetTo, 0),
				What: "the cluster has lost records that were read: the log was cut"})
		default:
			s.trouble = err
		}
	})
	fetches.EachRecord(func(r *kgo.Record) {
		p := s.parts[place{r.Topic, r.Partition}]
		if p == nil || p.leaving {
			return // not acknowledged, so it is read again, here or elsewhere
		}
		switch missing := p.add(r); {
		case missing < 0:
			s.broker.report(Loss{Topic: s.broker.ours(r.Topic), Partition: int(r.Partition), Consumer: s.consumer,
				What: "the log has begun anew: the cluster has lost its data, or somebody made the topic anew"})
		case missing > 0:
			s.broker.report(Loss{Topic: s.broker.ours(r.Topic), Partition: int(r.Partition), Consumer: s.consumer, Events: missing,
				What: "events were deleted before the consumer read them: it is behind by more than the topic's retention"})
		}
	})
}

// pick hands out what is due again and then what was read, partition by partition, and tells when to look again. A partition
// that has records to be handed out again hands out nothing newer until then.
func (s *source) pick(m *member, most int) (got []inbox.Delivery, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait = mostWait
	if s.member != m || m.replaced.Load() || !m.trusted(s.broker.cfg.Session) {
		return nil, 50 * time.Millisecond
	}
	now := time.Now()
	parts := s.ordered()
	for _, p := range parts {
		if p.leaving {
			continue
		}
		p.expire(now)
		flights, left := p.due(now, most-len(got))
		for _, f := range flights {
			delete(p.again, f.record.Offset)
			got = s.hand(got, p, f.record, f.attempt+1, now)
		}
		if left > 0 {
			wait = min(wait, left)
		}
		for len(p.again) == 0 && len(p.ready) > 0 && len(got) < most {
			r := p.ready[0]
			p.ready = p.ready[1:]
			got = s.hand(got, p, r, 1, now)
		}
		if left := p.nextExpiry(now); left > 0 {
			wait = min(wait, left)
		}
	}
	s.hold(m, parts)
	return got, wait
}

// ordered is the partitions in a fixed order, from another one on each time. The caller holds the lock.
func (s *source) ordered() []*partition {
	parts := make([]*partition, 0, len(s.parts))
	for _, p := range s.parts {
		parts = append(parts, p)
	}
	slices.SortFunc(parts, func(a, b *partition) int {
		return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.number, b.number))
	})
	if len(parts) == 0 {
		return nil
	}
	s.first++
	at := s.first % len(parts)
	return append(parts[at:len(parts):len(parts)], parts[:at]...)
}

// hold keeps the client from reading on where records wait to be handed out again: they would pile up here. The caller holds
// the lock.
func (s *source) hold(m *member, parts []*partition) {
	for _, p := range parts {
		one := map[string][]int32{p.topic: {p.number}}
		switch waits := len(p.again) > 0 || len(p.ready) >= ahead; {
		case waits && !p.held:
			p.held = true
			m.client.PauseFetchPartitions(one)
		case !waits && p.held:
			p.held = false
			m.client.ResumeFetchPartitions(one)
		}
	}
}

// hand makes a delivery of a record. The caller holds the lock.
func (s *source) hand(got []inbox.Delivery, p *partition, r *kgo.Record, attempt int, now time.Time) []inbox.Delivery {
	event, malformed := eventOf(r)
	f := &flight{record: r, attempt: attempt, due: now.Add(s.broker.cfg.AckWait)}
	p.out[r.Offset] = f
	d := inbox.Delivery{
		Event: event, Malformed: malformed, Partition: p.name,
		Ack:    func(context.Context) error { return s.ack(p, f) },
		Return: func(_ context.Context, delay time.Duration) error { return s.giveBack(p, f, delay) },
	}
	if attempt > 1 { // what another instance may have delivered before is not known
		d.Attempt = attempt
	}
	return append(got, d)
}

// ack notes that the record is done with. The group is told by the next Fetch, or a moment later.
func (s *source) ack(p *partition, f *flight) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.gone {
		return fmt.Errorf("acknowledge for %s: %w", s.consumer, errMoved)
	}
	at := f.record.Offset
	for _, open := range []map[int64]*flight{p.out, p.again} {
		// Handed out again meanwhile it is another flight of this record; another record was read from a log that began anew.
		if now := open[at]; now != nil && now.record == f.record {
			delete(open, at)
		}
	}
	s.owed++
	signal(s.settled)
	s.commitSoon(commitAfter)
	return nil
}

// giveBack keeps the record to be handed out again. A new owner of the partition has it already.
func (s *source) giveBack(p *partition, f *flight, delay time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.gone || p.out[f.record.Offset] != f {
		return nil
	}
	delete(p.out, f.record.Offset)
	f.due = time.Now().Add(max(delay, 0))
	p.again[f.record.Offset] = f
	signal(s.settled)
	signal(s.news)
	return nil
}

// Acknowledgements wait commitAfter for others to be committed with, and commitAgain when the cluster could not be reached.
const (
	commitAfter = 5 * time.Millisecond
	commitAgain = 250 * time.Millisecond
)

// commitSoon sees to it that what is acknowledged is committed even if no Fetch comes. The caller holds the lock.
func (s *source) commitSoon(wait time.Duration) {
	if s.soon || s.closed || s.member == nil {
		return
	}
	s.soon = true
	time.AfterFunc(wait, func() {
		s.mu.Lock()
		s.soon = false
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), s.broker.cfg.Timeout)
		defer cancel()
		if err := s.commit(ctx); err != nil {
			s.broker.cfg.Log.Debug("kafka broker: commit", "consumer", s.consumer, "error", err)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.commitSoon(commitAgain)
		}
	})
}

// Close commits what is acknowledged and leaves the group, so that another instance goes on at once. What is not acknowledged
// is delivered to that one. It may be called twice.
func (s *source) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.done)
	s.mu.Unlock()
	s.turn <- struct{}{} // a Fetch that is under way ends now
	defer func() { <-s.turn }()
	s.mu.Lock()
	m := s.member
	s.mu.Unlock()
	var err error
	if m != nil {
		err = s.leave(m)
	}
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	delete(s.broker.sources, s)
	return err
}
