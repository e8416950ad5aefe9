package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/convergo/convergo"
)

// Keys. A topic's name has no colon, and ours behind a second one begin with "!", so that no two kinds can meet.
func (b *Broker) streamKey(topic string, partition int) string {
	return b.cfg.Prefix + ":" + topic + ":" + strconv.Itoa(partition)
}

// topicsKey is a hash: topic → number of partitions.
func (b *Broker) topicsKey() string { return b.cfg.Prefix + ":!topics" }

// tokensKey is the counter that makes every lease another one.
func (b *Broker) tokensKey() string { return b.cfg.Prefix + ":!tokens" }

func (b *Broker) leaseKey(topic string, partition int, consumer string) string {
	return b.cfg.Prefix + ":!lease:" + topic + ":" + strconv.Itoa(partition) + ":" + consumer
}

// membersKey is a sorted set: instance → when it is taken for dead, milliseconds by the server's clock.
func (b *Broker) membersKey(topic, consumer string) string {
	return b.cfg.Prefix + ":!members:" + topic + ":" + consumer
}

func (b *Broker) partitionOf(a convergo.Aggregate) int { return int(a.Lane()) % b.cfg.Partitions }

// ErrPartitions is wrapped when a topic was made with another number of partitions.
var ErrPartitions = errors.New("other number of partitions")

// prepare makes sure, once per Broker, that the topic has as many partitions as this Broker believes.
func (b *Broker) prepare(ctx context.Context, topic string) error {
	b.mu.Lock()
	known := b.topics[topic]
	b.mu.Unlock()
	if known {
		return nil
	}
	pipe := b.client.TxPipeline()
	pipe.HSetNX(ctx, b.topicsKey(), topic, b.cfg.Partitions)
	recorded := pipe.HGet(ctx, b.topicsKey(), topic)
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("partitions of topic %s: %w", topic, verdict(err))
	}
	if err := b.compare(topic, recorded.Val()); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.topics[topic] = true
	return nil
}

func (b *Broker) compare(topic, recorded string) error {
	if recorded == strconv.Itoa(b.cfg.Partitions) {
		return nil
	}
	return fmt.Errorf("topic %s was made with %s partitions and partitions (Config.Partitions) is %d, so that aggregates would change their partition and lose "+
		"their order: set it to %s; or stop publishing, let every consumer finish, delete the streams %s:%s:* and the topic's field in the hash %s: %w",
		topic, recorded, b.cfg.Partitions, recorded, b.cfg.Prefix, topic, b.topicsKey(), ErrPartitions)
}

// groups makes the consumer's groups on the topic's streams, from the beginning of what they still hold.
func (b *Broker) groups(ctx context.Context, topic, consumer string) error {
	pipe := b.client.Pipeline()
	made := make([]*redis.StatusCmd, b.cfg.Partitions)
	for p := range made {
		made[p] = pipe.XGroupCreateMkStream(ctx, b.streamKey(topic, p), consumer, "0")
	}
	_, _ = pipe.Exec(ctx) // its error is the first command's; each is looked at below
	for _, m := range made {
		if err := m.Err(); err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") {
			return fmt.Errorf("group %s on topic %s: %w", consumer, topic, verdict(err))
		}
	}
	return nil
}

// Forget removes a consumer that is used no more from the topics (all, when none is named): what it had not read no longer
// keeps events from being trimmed. Its instances must have ended.
func (b *Broker) Forget(ctx context.Context, consumer string, topics ...string) error {
	if len(topics) == 0 {
		all, err := b.client.HGetAll(ctx, b.topicsKey()).Result()
		if err != nil {
			return fmt.Errorf("forget %s: %w", consumer, verdict(err))
		}
		topics = slices.Sorted(maps.Keys(all))
	}
	for _, topic := range topics {
		for p := range b.cfg.Partitions {
			err := b.client.XGroupDestroy(ctx, b.streamKey(topic, p), consumer).Err()
			if err != nil && !missing(err) {
				return fmt.Errorf("forget %s at topic %s: %w", consumer, topic, verdict(err))
			}
		}
	}
	return nil
}

// Pending is, per consumer, how many events are not yet delivered or not yet acknowledged.
func (b *Broker) Pending(ctx context.Context) (map[string]int64, error) {
	topics, err := b.client.HGetAll(ctx, b.topicsKey()).Result()
	if err != nil {
		return nil, fmt.Errorf("redis broker: pending: %w", verdict(err))
	}
	pending := map[string]int64{}
	for topic := range topics {
		for p := range b.cfg.Partitions {
			groups, err := b.client.XInfoGroups(ctx, b.streamKey(topic, p)).Result()
			if err != nil && !missing(err) {
				return nil, fmt.Errorf("redis broker: pending of topic %s: %w", topic, verdict(err))
			}
			for _, g := range groups {
				pending[g.Name] += g.Pending + max(g.Lag, 0)
			}
		}
	}
	return pending, nil
}

// missing tells of a stream, or a group, that does not exist.
func missing(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "no such key") || strings.HasPrefix(err.Error(), "NOGROUP") ||
		strings.Contains(err.Error(), "requires the key to exist"))
}
