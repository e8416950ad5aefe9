package rocketmq

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/convergo/convergo/relay"
)

// Keeps tells how long every broker of the cluster keeps a message by its settings: files of messages leave once a day, when the newest
// in them is old enough. The last file of a broker never leaves, whatever its age, and one has a GiB: where there are few messages, they
// stay for longer than this says.
func (b *Broker) Keeps(ctx context.Context, _ []string) ([]relay.Kept, error) {
	settings, err := b.settings(ctx)
	if err != nil {
		return nil, fmt.Errorf("what RocketMQ keeps: %w", err)
	}
	var all []relay.Kept
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		const day = 24
		hours := whole(settings[name]["fileReservedTime"])
		k := relay.Kept{Where: "broker " + name, Setting: fmt.Sprintf("fileReservedTime %d hours, looked at once a day", hours)}
		if hours < math.MaxInt64/int(time.Hour)-day {
			k.Age = time.Duration(hours+day) * time.Hour
		}
		all = append(all, k)
	}
	return all, nil
}

// Room is what the broker of the cluster that takes least takes.
func (b *Broker) Room(ctx context.Context, _ []string) (relay.Room, error) {
	settings, err := b.settings(ctx)
	if err != nil {
		return relay.Room{}, fmt.Errorf("what RocketMQ takes: %w", err)
	}
	room := relay.Room{Payload: math.MaxInt32}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		most := whole(settings[name]["maxMessageSize"])
		if left := most - relay.FieldBytes; most > 0 && left < room.Payload {
			room = relay.Room{Setting: fmt.Sprintf("maxMessageSize %d of broker %s", most, name), Payload: left}
		}
	}
	return room, nil
}
