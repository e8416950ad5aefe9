package redis

import (
	"context"
	"errors"
	"fmt"
)

// Missing tells which of the topics have no streams yet and would get them, and makes none. The error says what is there and does not fit,
// such as another number of partitions, with the remedy; and what the account may not do, where the server lets it ask (ACL
// DRYRUN). A consumer's groups are made when it subscribes.
func (b *Broker) Missing(ctx context.Context, topics, _ []string) (missing []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	recorded, err := b.client.HGetAll(ctx, b.topicsKey()).Result()
	if err != nil {
		return nil, fmt.Errorf("redis broker at %s: topics: %w", b.where(), verdict(err))
	}
	var wrong []error
	for _, topic := range topics {
		if n, there := recorded[topic]; there {
			wrong = append(wrong, b.compare(topic, n))
		} else {
			missing = append(missing, fmt.Sprintf("streams %s:%s:0 to %d", b.cfg.Prefix, topic, b.cfg.Partitions-1))
		}
	}
	if len(topics) > 0 {
		wrong = append(wrong, b.mayWrite(ctx, b.streamKey(topics[0], 0)))
	}
	return missing, errors.Join(wrong...)
}

// mayWrite asks the server what it would answer, without doing it. A server that may not be asked has not said no.
func (b *Broker) mayWrite(ctx context.Context, stream string) error {
	me, err := b.client.Do(ctx, "ACL", "WHOAMI").Text()
	if err != nil {
		return nil
	}
	var wrong []error
	for _, command := range [][]any{{"XADD", stream, "*", "field", "value"}, {"HSETNX", b.topicsKey(), "topic", "8"}, {"EVAL", "return 1", "0"}} {
		answer, err := b.client.Do(ctx, append([]any{"ACL", "DRYRUN", me}, command...)...).Text()
		if err == nil && answer != "OK" {
			wrong = append(wrong, fmt.Errorf("redis broker at %s: the account %s is not allowed what it needs: %s", b.where(), me, answer))
		}
	}
	return errors.Join(wrong...)
}

var errLookOnly = errors.New("the broker was opened only to look at (Config.LookOnly): it neither publishes nor subscribes")
