package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/convergo/convergo"
)

// member is a source's membership in its group: a client, from the first Fetch until the source is closed or idle.
type member struct {
	client *kgo.Client
	heard  atomic.Int64  // when the coordinator last answered, nanoseconds since start; counted from before the request
	start  time.Time     // monotonic
	joined chan struct{} // closed when the source knows this member: the client calls back before it is even returned
	quit   chan struct{} // closed when the member is about to leave
	cancel context.CancelFunc
	reader sync.WaitGroup
	ids    map[string]kadm.TopicID // of the topics when it joined, by their names in Kafka
	// replaced: a topic was made anew since; nothing of this member is handed out or committed any more.
	replaced atomic.Bool
	strange  atomic.Bool // the cluster does not know the id under which the client asks
	watched  bool        // somebody will see whether the source is idle; the source's lock guards it
}

// OnBrokerE2E implements kgo.HookBrokerE2E: it notes when a heartbeat, a join or a sync that was answered was sent.
func (m *member) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e2e kgo.BrokerE2E) {
	const joinGroup, heartbeat, syncGroup = 11, 12, 14
	if key != heartbeat && key != joinGroup && key != syncGroup || e2e.Err() != nil {
		return
	}
	sent := time.Since(m.start) - e2e.DurationE2E()
	if key != heartbeat {
		sent = time.Since(m.start) // a join waits for others at the coordinator, and counts from its end
	}
	m.heard.Store(int64(sent))
}

// trusted tells whether the group cannot have given this member's partitions to another one yet. A process that was stopped for
// longer than its session (SIGSTOP) finds out here, before it hands out what it had read.
func (m *member) trusted(session time.Duration) bool {
	return time.Since(m.start)-time.Duration(m.heard.Load()) < session-session/5
}

// join makes the source a member of its group.
func (s *source) join(ctx context.Context) (*member, error) {
	b := s.broker
	looking, looked := context.WithTimeout(ctx, b.cfg.Timeout)
	ids, err := s.ids(looking)
	looked()
	if err != nil {
		return nil, err
	}
	m := &member{start: time.Now(), joined: make(chan struct{}), quit: make(chan struct{}), ids: ids}
	var topics []string
	for _, topic := range s.topics {
		topics = append(topics, b.topicName(topic))
	}
	client, err := kgo.NewClient(append(b.options(),
		kgo.WithHooks(m), kgo.ConsumerGroup(b.groupName(s.consumer)), kgo.ConsumeTopics(topics...), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.SessionTimeout(b.cfg.Session), kgo.HeartbeatInterval(b.cfg.Session/6),
		kgo.RebalanceTimeout(b.drain()+10*time.Second),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxBytes(16<<20), kgo.FetchMaxPartitionBytes(2<<20), kgo.FetchMaxWait(time.Second),
		kgo.AdjustFetchOffsetsFn(func(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
			if err := s.vouch(ctx, m, offsets); err != nil {
				return nil, err
			}
			s.assigned(m, offsets)
			return offsets, nil
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, revoked map[string][]int32) { s.revoked(m, revoked) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { s.drop(m, lost) }),
	)...)
	if err != nil {
		return nil, fmt.Errorf("group %s: %w", b.groupName(s.consumer), err)
	}
	m.client = client
	reading, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	s.mu.Lock()
	s.member, s.parts = m, map[place]*partition{}
	s.mu.Unlock()
	close(m.joined)
	m.reader.Go(func() { s.read(reading, m) })
	m.reader.Go(func() { s.watch(reading, m) })
	return m, nil
}

// leave ends a membership: what is acknowledged is committed and the partitions go to others at once.
func (s *source) leave(m *member) error {
	close(m.quit)
	m.cancel()
	m.reader.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), s.broker.cfg.Timeout)
	defer cancel()
	err := s.commit(ctx)
	m.client.AllowRebalance()
	err = errors.Join(err, m.client.LeaveGroupContext(ctx))
	m.client.CloseAllowingRebalance()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.parts {
		p.gone = true
	}
	s.member, s.parts = nil, map[place]*partition{}
	return err
}

// read takes records from the client when a Fetch has nothing to hand out. Partitions move only between two rounds, so that no
// record of an assignment that is over is ever taken for one of the next.
func (s *source) read(ctx context.Context, m *member) {
	for {
		select {
		case <-s.hungry:
		case <-ctx.Done():
			return
		}
		fetches := m.client.PollRecords(ctx, ahead)
		s.received(m, fetches)
		m.client.AllowRebalance()
		if ctx.Err() != nil {
			return
		}
		signal(s.news)
	}
}

// drain is how long a partition that is to move waits for its deliveries.
func (b *Broker) drain() time.Duration { return min(b.cfg.AckWait, 30*time.Second) }

// assigned notes where the group says that the partitions' reading goes on. It runs after they were given to this member and
// before any of their records are read.
func (s *source) assigned(m *member, offsets map[string]map[int32]kgo.Offset) {
	<-m.joined
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.member != m {
		return
	}
	for topic, partitions := range offsets {
		for number, offset := range partitions {
			p := newPartition(topic, number)
			p.name = fmt.Sprint(s.broker.ours(topic), "/", number)
			if at := offset.EpochOffset().Offset; at >= 0 {
				p.next, p.committed = at, at
			}
			s.parts[place{topic, number}] = p
		}
	}
}

// revoked lets partitions go: nothing more of them is handed out, what is out gets time to be acknowledged, and what is
// acknowledged is committed before another instance may begin. What is not is delivered to that one.
func (s *source) revoked(m *member, revoked map[string][]int32) {
	<-m.joined
	var leaving []*partition
	s.mu.Lock()
	for topic, numbers := range revoked {
		for _, number := range numbers {
			if p := s.parts[place{topic, number}]; p != nil && s.member == m {
				p.leave()
				leaving = append(leaving, p)
			}
		}
	}
	s.mu.Unlock()
	patience := time.NewTimer(s.broker.drain())
	defer patience.Stop()
	for s.busy(leaving) {
		select {
		case <-s.settled:
		case <-patience.C:
		case <-m.quit:
		}
		if !s.waits(m) {
			break
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.broker.cfg.Timeout)
	defer cancel()
	if err := s.commit(ctx); err != nil {
		s.broker.cfg.Log.Warn("kafka broker: acknowledgements lost in a rebalance, their events come again", "consumer", s.consumer, "error", err)
	}
	s.drop(m, revoked)
}

// waits tells whether it makes sense to wait for deliveries: not when the source is being closed.
func (s *source) waits(m *member) bool {
	select {
	case <-m.quit:
		return false
	default:
		return true
	}
}

func (s *source) busy(parts []*partition) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, p := range parts {
		if p.busy(now) {
			return true
		}
	}
	return false
}

// drop forgets partitions that are, or may be, another instance's.
func (s *source) drop(m *member, lost map[string][]int32) {
	<-m.joined
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.member != m {
		return
	}
	for topic, numbers := range lost {
		for _, number := range numbers {
			if p := s.parts[place{topic, number}]; p != nil {
				p.gone = true
				delete(s.parts, place{topic, number})
			}
		}
	}
}

// commit tells the group what is done with, up to the first offset of each partition that is not.
func (s *source) commit(ctx context.Context) error {
	s.committing.Lock()
	defer s.committing.Unlock()
	s.mu.Lock()
	m, owed := s.member, s.owed
	offsets := map[string]map[int32]kgo.EpochOffset{}
	moved := map[*partition]int64{}
	for at, p := range s.parts {
		if position := p.position(); position > p.committed {
			if offsets[at.topic] == nil {
				offsets[at.topic] = map[int32]kgo.EpochOffset{}
			}
			offsets[at.topic][at.number] = kgo.EpochOffset{Epoch: p.epoch, Offset: position}
			moved[p] = position
		}
	}
	s.mu.Unlock()
	if m == nil || len(moved) == 0 || m.replaced.Load() {
		return nil
	}
	var failed error
	told := func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, answer *kmsg.OffsetCommitResponse, err error) {
		failed = errors.Join(err, refusal(answer))
	}
	m.client.CommitOffsetsSync(kgo.PreCommitFnContext(ctx, m.named), offsets, told)
	if failed != nil {
		return fmt.Errorf("commit for %s: %w", s.consumer, convergo.Unreachable(failed))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owed -= min(owed, s.owed)
	for p, position := range moved {
		p.committed = max(p.committed, position)
	}
	return nil
}

// refusal is the first error in the group's answer to a commit.
func refusal(answer *kmsg.OffsetCommitResponse) error {
	if answer == nil {
		return nil
	}
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return err
			}
		}
	}
	return nil
}
