package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/convergo/convergo"
)

// topic is what is known of a topic.
type topic struct {
	looked time.Time
	limit  int // largest record in bytes
	id     kadm.TopicID
}

// lookAgain is how long what is known of a topic is believed.
const lookAgain = time.Minute

// ErrPartitions is wrapped when a topic has another number of partitions.
var ErrPartitions = errors.New("other number of partitions")

func (b *Broker) topicName(topic string) string { return b.cfg.Prefix + topic }

// ours is the name that topicName was given.
func (b *Broker) ours(name string) string { return strings.TrimPrefix(name, b.cfg.Prefix) }

func (b *Broker) groupName(consumer string) string { return b.cfg.Prefix + consumer }

func (b *Broker) partitionOf(a convergo.Aggregate) int32 {
	return int32(int(a.Lane()) % b.cfg.Partitions)
}

// prepare makes the topic if it is missing and makes sure, once a minute, that it has as many partitions as this Broker
// believes. It returns the size of the largest record.
func (b *Broker) prepare(ctx context.Context, name string) (limit int, err error) {
	b.mu.Lock()
	known, ok := b.topics[name]
	b.mu.Unlock()
	if ok && time.Since(known.looked) < lookAgain {
		return known.limit, nil
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	id, made, err := b.find(ctx, name)
	if err == nil && !made {
		if err = b.create(ctx, name); err == nil {
			id, _, err = b.find(ctx, name)
		}
	}
	if err != nil {
		return 0, err
	}
	limit, err = b.limitOf(ctx, name)
	if err != nil {
		return 0, err
	}
	if replaced := b.note(name, topic{time.Now(), limit, id}); replaced || ok && !made && noID(id) {
		b.report(Loss{Topic: name, What: "the topic is gone, and was made anew: the cluster has lost its data, or somebody deleted it"})
	}
	return limit, nil
}

// doubt makes the next prepare look at the topic.
func (b *Broker) doubt(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if known, ok := b.topics[name]; ok {
		known.looked = time.Time{}
		b.topics[name] = known
	}
}

func (b *Broker) look(ctx context.Context, name string) (made bool, err error) {
	_, made, err = b.find(ctx, name)
	return made, err
}

// find is look, and tells the topic's id, which is zero where the cluster gives none.
func (b *Broker) find(ctx context.Context, name string) (id kadm.TopicID, made bool, err error) {
	list, err := b.admin.ListTopics(ctx, b.topicName(name))
	if err != nil {
		return id, false, fmt.Errorf("topic %s: %w", name, verdict(err))
	}
	detail := list[b.topicName(name)]
	switch {
	case errors.Is(detail.Err, kerr.UnknownTopicOrPartition):
		return id, false, nil
	case detail.Err != nil:
		return id, false, fmt.Errorf("topic %s: %w", name, verdict(detail.Err))
	case len(detail.Partitions) != b.cfg.Partitions:
		n := len(detail.Partitions)
		return id, true, fmt.Errorf("topic %s has %d partitions and partitions (Config.Partitions) is %d, so that aggregates would change their partition and lose "+
			"their order: set it to %d; or stop publishing, let every consumer finish, stop every process (one that runs makes again what is deleted), "+
			"and begin with a new prefix or a topic made anew: %w",
			b.topicName(name), n, b.cfg.Partitions, n, ErrPartitions)
	}
	return detail.ID, true, nil
}

// topicSettings of a topic that is made here.
func (b *Broker) topicSettings() map[string]*string {
	retention := "-1"
	if b.cfg.MaxAge != Forever {
		retention = strconv.FormatInt(b.cfg.MaxAge.Milliseconds(), 10)
	}
	return map[string]*string{
		// Events leave by whole segments: see keptBy.
		"segment.ms":   kadm.StringPtr(strconv.FormatInt(segmentAge(b.cfg.MaxAge).Milliseconds(), 10)),
		"retention.ms": kadm.StringPtr(retention), "retention.bytes": kadm.StringPtr("-1"), "cleanup.policy": kadm.StringPtr("delete"),
		"min.insync.replicas": kadm.StringPtr(strconv.Itoa(max(1, b.cfg.Replication-1))), "unclean.leader.election.enable": kadm.StringPtr("false"),
		"max.message.bytes": kadm.StringPtr(strconv.Itoa(b.cfg.MaxMessage)),
		// The age of an event counts from when it came here: one that is replayed must not be too old at once.
		"message.timestamp.type": kadm.StringPtr("LogAppendTime"),
	}
}

// segmentAge is how long one segment is written to. A seventh of the time that events are kept is little longer, and few files.
func segmentAge(maxAge time.Duration) time.Duration {
	return min(max(maxAge/7, time.Minute), 24*time.Hour)
}

func (b *Broker) create(ctx context.Context, name string) error {
	answer, err := b.admin.CreateTopic(ctx, int32(b.cfg.Partitions), int16(b.cfg.Replication), b.topicSettings(), b.topicName(name))
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) { // then another process was faster
		return b.cannotMake(name, err, answer.ErrMessage)
	}
	return b.made(ctx, name)
}

// made waits until the nodes know of a topic that was just made.
func (b *Broker) made(ctx context.Context, name string) error {
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		if made, err := b.look(ctx, name); err != nil || made {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return convergo.Unreachable(fmt.Errorf("topic %s was made and is not to be seen: %w", name, ctx.Err()))
		}
	}
}

// limitOf is the smaller of the topic's and our own largest record. Without the permission to look it is our own.
func (b *Broker) limitOf(ctx context.Context, name string) (int, error) {
	configs, err := b.admin.DescribeTopicConfigs(ctx, b.topicName(name))
	if err == nil {
		for _, c := range configs {
			if value, ok := settingOf(c, "max.message.bytes"); ok {
				if n, err := strconv.Atoi(value); err == nil {
					return min(n, b.cfg.MaxMessage), nil
				}
			}
		}
	}
	if ctx.Err() != nil {
		return 0, convergo.Unreachable(fmt.Errorf("settings of topic %s: %w", name, ctx.Err()))
	}
	return b.cfg.MaxMessage, nil
}

func settingOf(c kadm.ResourceConfig, key string) (string, bool) {
	for _, setting := range c.Configs {
		if setting.Key == key && setting.Value != nil {
			return *setting.Value, true
		}
	}
	return "", false
}

// Pending is, per consumer of this prefix, how many events are not yet acknowledged.
func (b *Broker) Pending(ctx context.Context) (map[string]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	groups, err := b.admin.ListGroups(ctx)
	if err != nil {
		return nil, fmt.Errorf("kafka broker: pending: %w", verdict(err))
	}
	pending := map[string]int64{}
	var names []string
	for _, g := range groups.Groups() {
		if strings.HasPrefix(g, b.cfg.Prefix) {
			names = append(names, g)
		}
	}
	if len(names) == 0 {
		return pending, nil
	}
	lags, err := b.admin.Lag(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("kafka broker: pending: %w", verdict(err))
	}
	for name, lag := range lags {
		if err := lag.Error(); err != nil {
			return nil, fmt.Errorf("kafka broker: pending of %s: %w", name, verdict(err))
		}
		pending[strings.TrimPrefix(name, b.cfg.Prefix)] = lag.Lag.Total()
	}
	return pending, nil
}
