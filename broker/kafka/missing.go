package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/convergo/convergo"
)

// Missing tells which of the topics are not there yet and would be made, and makes none. The cluster itself judges whether they could be:
// replication, settings, permission. The error says what it would refuse, and what is there and does not fit, such as another
// number of partitions, with the remedy. Consumers need nothing of their own here.
func (b *Broker) Missing(ctx context.Context, topics, _ []string) (missing []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	var wrong []error
	for _, name := range topics {
		made, err := b.look(ctx, name)
		if err != nil {
			wrong = append(wrong, err)
		}
		if err == nil && !made {
			missing = append(missing, "topic "+b.topicName(name))
			wrong = append(wrong, b.couldCreate(ctx, name))
		}
	}
	return missing, errors.Join(wrong...)
}

func (b *Broker) couldCreate(ctx context.Context, name string) error {
	answers, err := b.admin.ValidateCreateTopics(ctx, int32(b.cfg.Partitions), int16(b.cfg.Replication), b.topicSettings(), b.topicName(name))
	if err != nil {
		return fmt.Errorf("whether topic %s could be made: %w", b.topicName(name), verdict(err))
	}
	answer := answers[b.topicName(name)]
	switch err := answer.Err; {
	case err == nil || errors.Is(err, kerr.TopicAlreadyExists): // another process was faster
		return nil
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		return fmt.Errorf("topic %s is not there, and the account may not make it: grant it Create, or make the topic with %d partitions: %w",
			b.topicName(name), b.cfg.Partitions, err)
	default:
		return b.cannotMake(name, err, answer.ErrMessage)
	}
}

// cannotMake says why a topic is refused. Nodes that are too few may be down: the topic's events wait, and spend no attempts.
func (b *Broker) cannotMake(name string, err error, message string) error {
	if errors.Is(err, kerr.InvalidReplicationFactor) {
		return convergo.Unavailable(fmt.Errorf("make topic %s with replication %d: the cluster has fewer nodes; set replicas (Config.Replication) "+
			"to their number: %w %s", b.topicName(name), b.cfg.Replication, err, message))
	}
	return fmt.Errorf("make topic %s: %w", b.topicName(name), verdict(err))
}
