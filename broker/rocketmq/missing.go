package rocketmq

import (
	"context"
	"errors"
	"fmt"
)

// Missing tells which of the topics the name server does not know, so that they would be made, and makes none. The error says what is
// there and does not fit, such as another number of queues, with the remedy. Consumers need nothing of their own here. Whether the
// account may make topics cannot be seen without making one.
func (b *Broker) Missing(ctx context.Context, topics, _ []string) (missing []string, err error) {
	var wrong []error
	for _, topic := range topics {
		name := b.topicName(topic)
		r, err := b.ask(ctx, name)
		switch {
		case errors.Is(err, errNoTopic):
			missing = append(missing, "topic "+name)
		case err != nil:
			wrong = append(wrong, fmt.Errorf("topic %s: %w", name, err))
		default:
			_, err := b.count(name, r)
			wrong = append(wrong, err)
		}
	}
	return missing, errors.Join(wrong...)
}
