package rocketmq

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// Check reads the settings of every broker of the cluster and names those under which something confirmed can be lost. What
// cannot be seen: the term of the brokers' locks, a property of their Java machine (Config.LockTerm must not be above it), and
// whether a disk keeps what it says it has written.
func (b *Broker) Check(ctx context.Context) ([]relay.Warning, error) {
	settings, err := b.settings(ctx)
	if err != nil {
		return nil, fmt.Errorf("check RocketMQ: %w", err)
	}
	var all []relay.Warning
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		all = append(all, judge(name, settings[name])...)
	}
	return all, nil
}

// settings of every broker of the cluster, by its name.
func (b *Broker) settings(ctx context.Context) (map[string]map[string]string, error) {
	masters, err := b.clusterMasters(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(masters)) {
		answer, err := b.reading.call(ctx, masters[name], request(codeBrokerConfig, nil, nil))
		if err != nil {
			return nil, fmt.Errorf("settings of broker %s: %w", name, err)
		}
		all[name] = map[string]string{}
		for line := range strings.SplitSeq(string(answer.body), "\n") {
			if key, value, ok := strings.Cut(line, "="); ok {
				all[name][key] = strings.TrimSpace(value)
			}
		}
	}
	return all, nil
}

// judge a broker's settings.
func judge(broker string, s map[string]string) []relay.Warning {
	var all []relay.Warning
	warn := func(setting, want, loses string) {
		all = append(all, relay.Warning{Setting: setting + " of broker " + broker, Value: s[setting], Want: want, Loses: loses})
	}
	if s["flushDiskType"] != "SYNC_FLUSH" {
		warn("flushDiskType", "SYNC_FLUSH", "what was confirmed in the last half second or more, when the machine or its power fails")
	}
	// A cluster whose controller names the master confirms by the settings of its own below.
	replicated := s["brokerRole"] == "SYNC_MASTER" || s["allAckInSyncStateSet"] == "true" || whole(s["inSyncReplicas"]) > 1
	if !replicated {
		warn("brokerRole", "SYNC_MASTER with a slave",
			"what was confirmed and is not on a slave yet, or all when there is none, when the machine's disk fails")
	}
	if s["brokerRole"] == "SYNC_MASTER" && whole(s["inSyncReplicas"]) < 2 {
		warn("inSyncReplicas", "2", "what was confirmed by the master alone, when the machine's disk fails")
	}
	if s["transientStorePoolEnable"] == "true" {
		warn("transientStorePoolEnable", "false", "what was confirmed and is only in the broker's own memory, when the broker is killed")
	}
	if s["autoCreateTopicEnable"] == "true" {
		warn("autoCreateTopicEnable", "false",
			"the order within an aggregate, when a topic is made by a foreign message with a number of queues that nobody chose")
	}
	if hours := whole(s["fileReservedTime"]); hours < 72 {
		warn("fileReservedTime", "72 (hours) or more", "what a consumer that was away for longer has not read; replay it from the outbox")
	}
	if most := whole(s["maxMessageSize"]); most < 2*convergo.MaxPayloadBytes {
		warn("maxMessageSize", fmt.Sprint("4194304, its default, and at least ", 2*convergo.MaxPayloadBytes),
			"nothing, but large events are refused")
	}
	return all
}

// whole reads a number; 0 for what is none.
func whole(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return n
}
