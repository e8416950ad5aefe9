package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// gone notes that a broker has said that it does not have a topic: before it is used again the brokers are asked for it.
func (b *Broker) gone(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.topics[name]; t != nil {
		b.topics[name] = &topic{partitions: t.partitions, gone: true}
	}
}

// remake makes a topic again at those of its brokers that have lost it, with the queues that it had there. Nothing is made while one
// of its brokers is down: the name server does not name a broker's topics then, and the broker may have them.
func (b *Broker) remake(ctx context.Context, name string, had []partition) error {
	if b.cfg.NoCreate {
		return nil
	}
	masters, err := b.clusterMasters(ctx)
	if err != nil {
		return err
	}
	queues := map[string]int{}
	for _, p := range had {
		if _, up := masters[p.Broker]; !up {
			return nil
		}
		queues[p.Broker]++
	}
	made := false
	for _, broker := range slices.Sorted(maps.Keys(queues)) {
		_, err := b.reading.call(ctx, masters[broker], request(codeTopicConfig, fields("topic", name), nil))
		switch refusedWith(err) {
		case answerNoTopic:
		case -1:
			if err != nil {
				return fmt.Errorf("ask broker %s for topic %s: %w", broker, name, err)
			}
			continue
		default:
			return fmt.Errorf("ask broker %s for topic %s: %w", broker, name, err)
		}
		if err := b.createAt(ctx, masters[broker], name, queues[broker]); err != nil {
			return fmt.Errorf("make topic %s again at broker %s: %w", name, broker, err)
		}
		made = true
		b.cfg.Log.Warn("the broker has lost its data: the topic was made again; `convergo replay --since` refills it from the outboxes",
			"broker", broker, "topic", name, "queues", queues[broker])
	}
	if !made {
		return nil
	}
	_, err = b.appeared(ctx, name)
	return err
}

// renewed looks a topic up that was seen before, and has what was lost of it made again.
func (b *Broker) renewed(ctx context.Context, name string, known *topic) ([]partition, error) {
	if known.gone {
		if err := b.remake(ctx, name, known.partitions); err != nil {
			return nil, err
		}
	}
	found, err := b.look(ctx, name, false)
	if errors.Is(err, errNoTopic) || errors.Is(err, errQueues) {
		if err := b.remake(ctx, name, known.partitions); err != nil {
			return nil, err
		}
		return b.look(ctx, name, false)
	}
	return found, err
}

// createAt makes a topic at one broker.
func (b *Broker) createAt(ctx context.Context, address, name string, queues int) error {
	_, err := b.reading.call(ctx, address, request(codeCreateTopic, fields("topic", name, "defaultTopic", "TBW102",
		"readQueueNums", queues, "writeQueueNums", queues, "perm", 6, "topicFilterType", "SINGLE_TAG", "topicSysFlag", 0, "order", false), nil))
	return err
}
