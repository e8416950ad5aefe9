package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// largestRecord is what the largest event that may be written takes, with room for its headers.
const largestRecord = convergo.MaxPayloadBytes + convergo.MaxHeaderBytes + 8*1024

// Check looks at the topics of this prefix and at the topic of the consumers' positions, and returns the settings under which
// something confirmed can be lost, or can never be sent. Topics that nobody has used yet are made as Config says.
func (b *Broker) Check(ctx context.Context) ([]relay.Warning, error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	topics, names, configs, err := b.described(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("check kafka at %v: %w", b.cfg.Seeds, err)
	}
	found := b.checkPlan()
	if nodes, err := b.admin.ListBrokers(ctx); err == nil && len(nodes) < b.cfg.Replication {
		found = append(found, relay.Warning{
			Setting: "replicas (Config.Replication)", Value: fmt.Sprintf("%d, on %d nodes", b.cfg.Replication, len(nodes)), Want: "no more than there are nodes",
			Loses: "The time of events whose topic is not there yet: it cannot be made, and they wait.",
		})
	}
	for _, name := range names {
		c := checked{name: name, found: &found}
		c.replicas(topics[name])
		config, err := configs.On(name, nil)
		if err == nil {
			err = config.Err
		}
		if err != nil {
			c.warn("settings", "unknown ("+err.Error()+")", "visible", "Whatever the settings allow: the permission to describe configurations is missing.")
			continue
		}
		c.durability(config)
		if name != positions {
			c.keeping(config, b.cfg)
		}
	}
	return found, nil
}

// described lists topics that are there, sorted, with their settings: those that are wanted, by our names, or all that are ours, with that
// of the consumers' positions.
func (b *Broker) described(ctx context.Context, wanted []string) (topics kadm.TopicDetails, names []string, configs kadm.ResourceConfigs, err error) {
	topics, err = b.admin.ListTopicsWithInternal(ctx)
	if err != nil {
		return nil, nil, nil, verdict(err)
	}
	for name, detail := range topics {
		if errors.Is(detail.Err, kerr.UnknownTopicOrPartition) { // somebody asked for it, and it is not there
			continue
		}
		if len(wanted) > 0 {
			if slices.ContainsFunc(wanted, func(topic string) bool { return b.topicName(topic) == name }) {
				names = append(names, name)
			}
		} else if name == positions || b.cfg.Prefix != "" && strings.HasPrefix(name, b.cfg.Prefix) || b.known(name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 { // the client would ask for every topic
		return topics, nil, nil, nil
	}
	slices.Sort(names)
	configs, err = b.admin.DescribeTopicConfigs(ctx, names...)
	return topics, names, configs, verdict(err)
}

// positions is the topic in which groups keep how far they have come.
const positions = "__consumer_offsets"

func (b *Broker) known(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.topics[b.ours(name)]
	return ok
}

// checkPlan is about topics that will be made.
func (b *Broker) checkPlan() []relay.Warning {
	if b.cfg.Replication >= 3 {
		return nil
	}
	return []relay.Warning{{Setting: "replicas (Config.Replication)", Value: strconv.Itoa(b.cfg.Replication), Want: "3",
		Loses: "New topics lose confirmed events with the disk, or the power, of " + plural(b.cfg.Replication) + "."}}
}

func plural(nodes int) string {
	if nodes == 1 {
		return "one machine"
	}
	return "two machines, and stop when one of them is away"
}

// checked is a topic that is looked at.
type checked struct {
	name  string
	found *[]relay.Warning
}

func (c checked) warn(setting, value, want, loses string) {
	*c.found = append(*c.found, relay.Warning{Setting: setting + " of topic " + c.name, Value: value, Want: want, Loses: loses})
}

func (c checked) replicas(detail kadm.TopicDetail) {
	fewest, behind := 0, 0
	for _, p := range detail.Partitions {
		if fewest == 0 || len(p.Replicas) < fewest {
			fewest = len(p.Replicas)
		}
		if len(p.ISR) < len(p.Replicas) {
			behind++
		}
	}
	if fewest < 3 {
		c.warn("replication", strconv.Itoa(fewest), "3", "The loss of "+plural(max(fewest, 1))+" loses confirmed events.")
	}
	if behind > 0 {
		c.warn("in-sync replicas", fmt.Sprintf("incomplete in %d partitions", behind), "complete", "What is confirmed now is on fewer machines than planned.")
	}
}

func (c checked) durability(config kadm.ResourceConfig) {
	if value, ok := settingOf(config, "min.insync.replicas"); ok {
		if n, err := strconv.Atoi(value); err != nil || n < 2 {
			c.warn("min.insync.replicas", value, "2", "An event is confirmed when one machine has it, in memory: acks=all is hollow when the others lag behind.")
		}
	}
	if value, ok := settingOf(config, "unclean.leader.election.enable"); ok && value != "false" {
		c.warn("unclean.leader.election.enable", value, "false", "A replica that lags behind can become the leader: confirmed events that it lacks are gone.")
	}
}

func (c checked) keeping(config kadm.ResourceConfig, cfg Config) {
	if value, ok := settingOf(config, "retention.ms"); ok {
		ms, err := strconv.ParseInt(value, 10, 64)
		switch {
		case err != nil:
			c.warn("retention.ms", value, "a number", "Unknown.")
		case ms >= 0 && (cfg.MaxAge == Forever || ms < cfg.MaxAge.Milliseconds()):
			want := strconv.FormatInt(cfg.MaxAge.Milliseconds(), 10)
			if cfg.MaxAge == Forever {
				want = "-1"
			}
			c.warn("retention.ms", value, want, "A consumer that was away for longer finds its events deleted, read or not.")
		}
	}
	if value, ok := settingOf(config, "retention.bytes"); ok && value != "-1" {
		c.warn("retention.bytes", value, "-1", "Events leave when the topic grows, whatever their age, read or not.")
	}
	if value, ok := settingOf(config, "cleanup.policy"); ok && value != "delete" {
		c.warn("cleanup.policy", value, "delete", "Of an aggregate's events only the last stays: consumers that are behind miss the others.")
	}
	if value, ok := settingOf(config, "max.message.bytes"); ok {
		if n, err := strconv.Atoi(value); err != nil || n < largestRecord {
			c.warn("max.message.bytes", value, strconv.Itoa(largestRecord)+" or more",
				"An event that was written and is larger can never be sent: it becomes a dead event. Let what writes events refuse it (outbox.Config.MaxPayload).")
		}
	}
}
