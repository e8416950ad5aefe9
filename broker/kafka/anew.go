package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/convergo/convergo"
)

// A topic keeps its id for life; one of the same name in a cluster that lost its data, or made again after somebody deleted it, has
// another. Positions of the one mean nothing in the other: everything here keeps them apart. Clusters before 2.8 know no ids, and
// are compared by the end of the log only.

// noID is what a cluster without ids tells.
func noID(id kadm.TopicID) bool { return id == kadm.TopicID{} }

// anew tells whether these are the ids of two topics.
func anew(before, now kadm.TopicID) bool { return !noID(before) && !noID(now) && before != now }

// positionOf begins the text by which a commit names the topic whose position it is.
const positionOf = "topic="

// severed doubts all topics when a connection ends: a cluster is not replaced without that.
type severed struct{ b *Broker }

// OnBrokerDisconnect implements kgo.HookBrokerDisconnect.
func (h severed) OnBrokerDisconnect(kgo.BrokerMetadata, net.Conn) {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	for name, known := range h.b.topics {
		known.looked = time.Time{}
		h.b.topics[name] = known
	}
}

// note keeps what was seen of a topic. When it is not the one that was known, producers of before are not used any more: the new
// cluster may have given their numbers to others.
func (b *Broker) note(name string, now topic) (replaced bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	replaced = anew(b.topics[name].id, now.id)
	if replaced {
		b.generation++
	}
	b.topics[name] = now
	return replaced
}

// ids are the topics' ids now, by their names in Kafka. Topics that are gone are made again.
func (s *source) ids(ctx context.Context) (map[string]kadm.TopicID, error) {
	b := s.broker
	ids := map[string]kadm.TopicID{}
	for _, name := range s.topics {
		id, made, err := b.find(ctx, name)
		if err != nil {
			return nil, err
		}
		b.mu.Lock()
		known := b.topics[name]
		b.mu.Unlock()
		if !made || anew(known.id, id) {
			b.doubt(name)
			if _, err := b.prepare(ctx, name); err != nil {
				return nil, err
			}
			if id, _, err = b.find(ctx, name); err != nil {
				return nil, err
			}
		}
		ids[b.topicName(name)] = id
	}
	return ids, nil
}

// watch looks, as long as the member lives, whether its topics are still those that it joined for. The client would never read on by
// itself: it stays with the ids that it saw first.
func (s *source) watch(ctx context.Context, m *member) {
	look := time.NewTicker(s.broker.cfg.Session / 2)
	defer look.Stop()
	refused := 0 // looks in a row since which the cluster said that it does not know the client's id
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
		once, cancel := context.WithTimeout(ctx, s.broker.cfg.Timeout)
		ids, err := s.ids(once)
		cancel()
		if err != nil {
			s.broker.cfg.Log.Debug("kafka broker: are the topics the same?", "consumer", s.consumer, "error", err)
			continue
		}
		if refused++; !m.strange.Swap(false) {
			refused = 0
		}
		if refused > 1 || m.outdated(ids) {
			s.replace(m)
			return
		}
	}
}

// outdated tells whether one of the topics is not the one that the member joined for.
func (m *member) outdated(ids map[string]kadm.TopicID) bool {
	for name, id := range ids {
		if anew(m.ids[name], id) {
			return true
		}
	}
	return false
}

// replace ends the use of a member: it hands out and commits nothing more, and the next Fetch makes another one, which begins where
// the new topics begin.
func (s *source) replace(m *member) {
	if !m.replaced.Swap(true) {
		s.broker.cfg.Log.Warn("kafka broker: a topic was made anew: the cluster has lost data, or somebody deleted the topic; its consumer reads "+
			"the new one from the beginning, and `convergo replay --since` refills it from the outbox", "consumer", s.consumer)
	}
	signal(s.news)
}

var (
	errReplaced = errors.New("a topic was made anew since the member joined")
	errNoEnd    = errors.New("the cluster does not tell the log's end")
)

// vouch looks at the positions that the group has, before anything is read from there: one that is another topic's, or lies behind
// the log's end, is none. A process that outlived the old cluster may have committed it into the new one's group.
func (s *source) vouch(ctx context.Context, m *member, offsets map[string]map[int32]kgo.Offset) error {
	names := committedTopics(offsets)
	if len(names) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.broker.cfg.Timeout)
	defer cancel()
	ids, err := s.ids(ctx)
	if err != nil {
		return err
	}
	if m.outdated(ids) {
		s.replace(m)
		return errReplaced
	}
	commits, err := s.broker.admin.FetchOffsets(ctx, s.broker.groupName(s.consumer))
	if err != nil {
		return fmt.Errorf("positions of %s: %w", s.consumer, verdict(err))
	}
	ends, err := s.broker.admin.ListEndOffsets(ctx, names...)
	if err != nil {
		return fmt.Errorf("ends of the logs for %s: %w", s.consumer, verdict(err))
	}
	for _, name := range names {
		for number, offset := range offsets[name] {
			at := offset.EpochOffset().Offset
			if at < 0 {
				continue
			}
			end, ok := ends.Lookup(name, number)
			if !ok || end.Err != nil {
				return fmt.Errorf("%s/%d: %w", name, number, convergo.Unreachable(errors.Join(errNoEnd, end.Err)))
			}
			commit, _ := commits.Lookup(name, number)
			why := distrust(at, end.Offset, commit.Metadata, ids[name])
			if why == "" {
				continue
			}
			offsets[name][number] = kgo.NewOffset().AtStart()
			s.broker.report(Loss{Topic: s.broker.ours(name), Partition: int(number), Consumer: s.consumer,
				What: why + ": the cluster has lost its data, or the topic was made anew; it is read from its beginning"})
		}
	}
	return nil
}

// committedTopics are those of which the group has a position.
func committedTopics(offsets map[string]map[int32]kgo.Offset) (names []string) {
	for name, partitions := range offsets {
		for _, offset := range partitions {
			if offset.EpochOffset().Offset >= 0 {
				names = append(names, name)
				break
			}
		}
	}
	return names
}

// distrust says why a committed position must not be used; "" when it may. A commit of an older version names no topic.
func distrust(at, end int64, metadata string, id kadm.TopicID) string {
	of, named := strings.CutPrefix(metadata, positionOf)
	switch {
	case named && !noID(id) && of != id.String():
		return "the group's position is one of another topic of this name"
	case at > end:
		return fmt.Sprintf("the group's position %d lies behind the log's end %d", at, end)
	default:
		return ""
	}
}

// named makes a commit say which topics its positions are of.
func (m *member) named(r *kmsg.OffsetCommitRequest) error {
	for i := range r.Topics {
		topic := &r.Topics[i]
		id := m.ids[topic.Topic]
		if noID(id) {
			continue
		}
		for j := range topic.Partitions {
			topic.Partitions[j].Metadata = kmsg.StringPtr(positionOf + id.String())
		}
	}
	return nil
}
