package rocketmq

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/convergo/convergo"
)

// partition is one queue of a topic. Its form as JSON is that of a lock request.
type partition struct {
	Topic  string `json:"topic"`
	Broker string `json:"brokerName"`
	Queue  int    `json:"queueId"`
}

// topic is what is known of a topic of RocketMQ.
type topic struct {
	partitions []partition // by the number that lane modulo Config.Queues gives
	looked     time.Time   // when the name server was asked last
	gone       bool        // a broker has said that it does not have it
}

// routeFresh is how long a topic's route is believed without asking again.
const routeFresh = 30 * time.Second

// route is a name server's answer about a topic.
type route struct {
	Queues []struct {
		Broker string `json:"brokerName"`
		Read   int    `json:"readQueueNums"`
		Write  int    `json:"writeQueueNums"`
		Perm   int    `json:"perm"`
	} `json:"queueDatas"`
	Brokers []struct {
		Name      string           `json:"brokerName"`
		Addresses map[int64]string `json:"brokerAddrs"` // 0 is the master
	} `json:"brokerDatas"`
}

var errNoTopic = errors.New("the topic does not exist")

// ask looks a topic up at the first name server that answers, and remembers the brokers' addresses.
func (b *Broker) ask(ctx context.Context, name string) (route, error) {
	var failures []error
	for _, server := range b.cfg.NameServers {
		answer, err := b.reading.call(ctx, server, request(codeRoute, fields("topic", name, headerStandardJSON, true), nil))
		if refusedWith(err) == answerNoTopic {
			return route{}, errNoTopic
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("name server %s: %w", server, err))
			continue
		}
		var r route
		if err := json.Unmarshal(answer.body, &r); err != nil {
			failures = append(failures, fmt.Errorf("name server %s: its answer cannot be read: %w", server, err))
			continue
		}
		b.mu.Lock()
		for _, broker := range r.Brokers {
			if master, ok := broker.Addresses[0]; ok {
				b.masters[broker.Name] = master
			} else {
				delete(b.masters, broker.Name)
			}
		}
		b.mu.Unlock()
		return r, nil
	}
	return route{}, convergo.Unreachable(errors.Join(failures...))
}

// clusterMasters is the brokers of the cluster that have a master now, by name: the name server has a topic of the cluster's
// name that spans them.
func (b *Broker) clusterMasters(ctx context.Context) (map[string]string, error) {
	r, err := b.ask(ctx, b.cfg.Cluster)
	if errors.Is(err, errNoTopic) {
		return nil, convergo.Unreachable(fmt.Errorf("the name server knows no broker of the cluster %q", b.cfg.Cluster))
	}
	if err != nil {
		return nil, err
	}
	masters := map[string]string{}
	for _, broker := range r.Brokers {
		if address, ok := broker.Addresses[0]; ok {
			masters[broker.Name] = address
		}
	}
	if len(masters) == 0 {
		return nil, convergo.Unreachable(fmt.Errorf("no broker of the cluster %q has a master now", b.cfg.Cluster))
	}
	return masters, nil
}

// address of a broker's master.
func (b *Broker) address(broker string) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	address, ok := b.masters[broker]
	if !ok {
		return "", convergo.Unreachable(fmt.Errorf("broker %s has no master now", broker))
	}
	return address, nil
}

// known is the names of all brokers that have a master.
func (b *Broker) known() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.masters))
}

func (b *Broker) topicName(name string) string { return b.cfg.Prefix + name }

// partitions is the queues of a topic in their order, which is that of the brokers' names and of the queues' numbers: the same
// for everybody, and as long as the topic is not changed. A topic that does not exist is made.
func (b *Broker) partitions(ctx context.Context, name string) ([]partition, error) {
	b.mu.Lock()
	known := b.topics[name]
	closed := b.closed
	b.mu.Unlock()
	if closed {
		return nil, convergo.Unreachable(errClosed)
	}
	if known != nil && time.Since(known.looked) < routeFresh {
		return known.partitions, nil
	}
	var found []partition
	var err error
	if known == nil {
		found, err = b.look(ctx, name, !b.cfg.NoCreate)
	} else {
		found, err = b.renewed(ctx, name, known)
	}
	if err != nil && known != nil && !errors.Is(err, errQueues) && !errors.Is(err, errNoTopic) {
		b.cfg.Log.Warn("where the topic is cannot be found out; what was seen before is used", "topic", name, "error", err)
		return known.partitions, nil
	}
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.topics[name] = &topic{partitions: found, looked: time.Now()}
	return found, nil
}

// stale makes the next look at a topic ask the name server.
func (b *Broker) stale(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.topics[name]; t != nil {
		b.topics[name] = &topic{partitions: t.partitions, gone: t.gone}
	}
}

func (b *Broker) look(ctx context.Context, name string, create bool) ([]partition, error) {
	r, err := b.ask(ctx, name)
	if errors.Is(err, errNoTopic) {
		if !create {
			return nil, convergo.Unreachable(fmt.Errorf("topic %s: %w, or all its brokers are down: create it with %d queues",
				name, err, b.cfg.Queues))
		}
		if err := b.create(ctx, name); err != nil {
			return nil, fmt.Errorf("create topic %s: %w", name, err)
		}
		r, err = b.appeared(ctx, name)
	}
	if err != nil {
		return nil, fmt.Errorf("topic %s: %w", name, err)
	}
	return b.count(name, r)
}

var errQueues = errors.New("wrong number of queues")

// count lists a topic's queues and checks their number.
func (b *Broker) count(name string, r route) ([]partition, error) {
	var all []partition
	const readAndWrite = 6
	for _, q := range r.Queues {
		if q.Perm&readAndWrite != readAndWrite {
			return nil, convergo.Unreachable(fmt.Errorf("topic %s: broker %s has it with the permission %d, want 6 (read and write)",
				name, q.Broker, q.Perm))
		}
		if q.Read != q.Write {
			return nil, convergo.Unreachable(fmt.Errorf("topic %s: broker %s has %d queues to read and %d to write: %w: make the two equal",
				name, q.Broker, q.Read, q.Write, errQueues))
		}
		for i := range q.Write {
			all = append(all, partition{Topic: name, Broker: q.Broker, Queue: i})
		}
	}
	slices.SortFunc(all, func(x, y partition) int {
		return cmp.Or(cmp.Compare(x.Broker, y.Broker), cmp.Compare(x.Queue, y.Queue))
	})
	switch want := b.cfg.Queues; {
	case len(all) > want:
		return nil, convergo.Unreachable(fmt.Errorf("topic %s has %d queues, and partitions (Config.Queues) is %d: %w: set it to %d "+
			"in every program, or let the topic be consumed to its end, stop every program (one that runs makes it again) and make it anew",
			name, len(all), want, errQueues, len(all)))
	case len(all) < want:
		return nil, convergo.Unreachable(fmt.Errorf("topic %s has %d queues, and partitions (Config.Queues) is %d: %w: either a broker is down, "+
			"or the topic was made with another number: then set partitions to it in every program", name, len(all), want, errQueues))
	}
	return all, nil
}

// create makes a topic, its queues spread over the cluster's brokers. Another program may do the same at the same time.
func (b *Broker) create(ctx context.Context, name string) error {
	masters, err := b.clusterMasters(ctx)
	if err != nil {
		return err
	}
	var brokers []string
	for broker := range masters {
		brokers = append(brokers, broker)
	}
	slices.Sort(brokers)
	for i, broker := range brokers {
		queues := b.cfg.Queues / len(brokers)
		if i < b.cfg.Queues%len(brokers) {
			queues++
		}
		if queues == 0 {
			continue
		}
		// The name server may not know yet what the broker has: another number of queues is not overwritten.
		if _, err := b.reading.call(ctx, masters[broker], request(codeTopicConfig, fields("topic", name), nil)); err == nil {
			continue
		}
		if err := b.createAt(ctx, masters[broker], name, queues); err != nil {
			return fmt.Errorf("broker %s: %w", broker, err)
		}
	}
	return nil
}

// appeared waits until the name server knows a topic that was made.
func (b *Broker) appeared(ctx context.Context, name string) (route, error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		r, err := b.ask(ctx, name)
		if err == nil {
			if _, err := b.count(name, r); err == nil {
				return r, nil
			}
		} else if !errors.Is(err, errNoTopic) {
			return route{}, err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			if err == nil {
				return r, nil
			}
			return route{}, convergo.Unreachable(fmt.Errorf("it was made, and the name server does not know it: %w", ctx.Err()))
		}
	}
}
