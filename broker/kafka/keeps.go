package kafka

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/convergo/convergo/relay"
)

// Keeps tells how long these topics, those of them that are there, keep an event, read or not; without names all of this prefix. It needs
// the permission to describe their configurations: a topic that may not be looked at is an error.
func (b *Broker) Keeps(ctx context.Context, topics []string) ([]relay.Kept, error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	_, names, configs, err := b.described(ctx, topics)
	if err != nil {
		return nil, fmt.Errorf("what kafka at %v keeps: %w", b.cfg.Seeds, err)
	}
	var all []relay.Kept
	for _, name := range names {
		if name == positions {
			continue
		}
		config, err := configs.On(name, nil)
		if err == nil {
			err = config.Err
		}
		if err != nil {
			return nil, fmt.Errorf("settings of topic %s: %w", name, verdict(err))
		}
		all = append(all, keptBy(name, config))
	}
	return all, nil
}

// keptBy reads how long a topic keeps events. They leave by whole segments, each when its newest record is old enough: the oldest of one
// is then older by the time that the segment was written to.
func keptBy(name string, config kadm.ResourceConfig) relay.Kept {
	k := relay.Kept{Where: "topic " + name}
	if policy, ok := settingOf(config, "cleanup.policy"); ok && !strings.Contains(policy, "delete") {
		k.Setting = "cleanup.policy " + policy
		return k
	}
	retention, segment := milliseconds(config, "retention.ms"), milliseconds(config, "segment.ms")
	if retention < 0 {
		k.Setting = "retention.ms -1"
		return k
	}
	k.Setting = fmt.Sprintf("retention.ms %d and segment.ms %d", retention, segment)
	const most = math.MaxInt64 / int64(time.Millisecond)
	if retention > most/2 || segment > most/2 {
		return k // more than a century
	}
	k.Age = max(time.Duration(retention+segment), 1) * time.Millisecond
	return k
}

// milliseconds of a setting; what cannot be seen is the default of both, seven days.
func milliseconds(config kadm.ResourceConfig, key string) int64 {
	const otherwise = 7 * 24 * time.Hour
	value, _ := settingOf(config, key)
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return otherwise.Milliseconds()
	}
	return n
}

// Room is what the smallest of these topics takes, without names of all of this prefix, and what those take that are yet to be made.
func (b *Broker) Room(ctx context.Context, topics []string) (relay.Room, error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	_, names, configs, err := b.described(ctx, topics)
	if err != nil {
		return relay.Room{}, fmt.Errorf("what kafka at %v takes: %w", b.cfg.Seeds, err)
	}
	least, setting := b.cfg.MaxMessage, fmt.Sprintf("max_message (Config.MaxMessage) %d", b.cfg.MaxMessage)
	for _, name := range names {
		config, err := configs.On(name, nil)
		if err != nil || name == positions {
			continue // Check says what cannot be seen
		}
		value, _ := settingOf(config, "max.message.bytes")
		if n, err := strconv.Atoi(value); err == nil && n < least {
			least, setting = n, fmt.Sprintf("max.message.bytes %d of topic %s", n, name)
		}
	}
	return relay.Room{Setting: setting, Payload: least - overhead - relay.FieldBytes}, nil
}
