package rabbitmq

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/convergo/convergo/relay"
)

// Check looks for settings under which something confirmed can be lost. It sees what AMQP shows: that the queues of the
// consumers subscribed here are durable, of the wanted type and there at all, alarms of the server, and its version. It cannot see
// policies: one that sets message-ttl, max-length with overflow drop-head, or (with quorum queues) a delivery-limit without dead
// lettering lets the server drop events, and only `rabbitmqctl list_policies` or its management API shows it.
func (b *Broker) Check(ctx context.Context) ([]relay.Warning, error) {
	conn, err := b.consume.get(ctx)
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: check: %w", err)
	}
	b.mu.Lock()
	found := maps.Clone(b.warnings)
	consumers := slices.Sorted(maps.Keys(b.subscriptions))
	b.mu.Unlock()
	add := func(w relay.Warning) { found[w.Setting] = w }
	if b.cfg.Classic {
		add(relay.Warning{
			Setting: "classic (Config.Classic)", Value: "true", Want: "false, which makes quorum queues", Loses: "all events of a node's queues when its disk is lost",
		})
	}
	if len(b.cfg.Unclaimed) > 0 {
		var subjects []string
		for _, s := range b.cfg.Unclaimed {
			subjects = append(subjects, s.String())
		}
		add(relay.Warning{
			Setting: "unclaimed (Config.Unclaimed)", Value: strings.Join(subjects, ", "), Want: "only what nobody need hear",
			Loses: "events of these subjects while no queue is bound for them",
		})
	}
	if b.cfg.Replicas == 1 {
		add(relay.Warning{Setting: "replicas (Config.Replicas)", Value: "1", Want: "3", Loses: "all events of a queue when its node's disk is lost"})
	}
	for _, l := range []*link{b.publish, b.consume} {
		if why := l.blocked.Load(); why != nil {
			add(relay.Warning{Setting: "alarm of the server", Value: *why, Want: "none", Loses: "nothing; no event is taken until it ends"})
		}
	}
	for _, consumer := range consumers {
		for p := range b.cfg.Partitions {
			if w, bad, err := b.checkQueue(conn, b.queue(consumer, p)); err != nil {
				return nil, fmt.Errorf("rabbitmq: check: %w", err)
			} else if bad {
				add(w)
			}
		}
	}
	var all []relay.Warning
	for _, setting := range slices.Sorted(maps.Keys(found)) {
		all = append(all, found[setting])
	}
	return all, nil
}

// checkQueue declares the queue once more, which changes nothing: the server refuses when it is not what it should be. A missing one is
// told, not made.
func (b *Broker) checkQueue(conn *amqp.Connection, name string) (w relay.Warning, bad bool, err error) {
	err = ask(conn, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	})
	if refused(err, amqp.NotFound) {
		return relay.Warning{
			Setting: "queue " + name, Value: "missing", Want: "durable", Loses: "what is published before the consumer subscribes again",
		}, true, nil
	}
	if err != nil {
		return w, false, outage(err)
	}
	args := b.queueArguments(conn)
	args["x-single-active-consumer"] = true
	err = declare(conn, name, args)
	if refused(err, amqp.PreconditionFailed) {
		return relay.Warning{
			Setting: "queue " + name, Value: err.Error(), Want: "as this configuration makes it: durable, " + fmt.Sprint(args[amqp.QueueTypeArg]),
			Loses: "events, or their order, depending on what differs",
		}, true, nil
	}
	if err != nil {
		return w, false, outage(err)
	}
	return w, false, nil
}

// Pending is, per consumer subscribed here, how many events the server has ready for it; those that were delivered and are not
// acknowledged are not among them.
func (b *Broker) Pending(ctx context.Context) (map[string]int64, error) {
	conn, err := b.consume.get(ctx)
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: pending: %w", err)
	}
	b.mu.Lock()
	consumers := slices.Collect(maps.Keys(b.subscriptions))
	b.mu.Unlock()
	pending := map[string]int64{}
	err = ask(conn, func(ch *amqp.Channel) error {
		for _, consumer := range consumers {
			for p := range b.cfg.Partitions {
				q, err := ch.QueueDeclarePassive(b.queue(consumer, p), true, false, false, false, nil)
				if err != nil {
					return err
				}
				pending[consumer] += int64(q.Messages)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: pending: %w", outage(err))
	}
	return pending, nil
}
