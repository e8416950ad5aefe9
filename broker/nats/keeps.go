package nats

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/convergo/convergo/relay"
)

// Keeps tells how long the stream, if it is there, keeps an event, read or not.
func (b *Broker) Keeps(ctx context.Context, _ []string) ([]relay.Kept, error) {
	config, err := b.found(ctx)
	if config == nil || err != nil {
		return nil, err
	}
	return []relay.Kept{{Where: "stream " + config.Name, Setting: fmt.Sprint("max_age ", config.MaxAge), Age: max(config.MaxAge, 0)}}, nil
}

// Room is the smaller of what the server that this is connected to takes and what the stream does.
func (b *Broker) Room(ctx context.Context, _ []string) (relay.Room, error) {
	config, err := b.found(ctx)
	if err != nil {
		return relay.Room{}, err
	}
	least := b.conn.MaxPayload()
	setting := fmt.Sprintf("max_payload %d of the server", least)
	if config != nil && config.MaxMsgSize > 0 && int64(config.MaxMsgSize) < least {
		least, setting = int64(config.MaxMsgSize), fmt.Sprintf("max_msg_size %d of stream %s", config.MaxMsgSize, config.Name)
	}
	return relay.Room{Setting: setting, Payload: int(least) - relay.FieldBytes}, nil
}

// found is how the stream is configured; nil when there is none.
func (b *Broker) found(ctx context.Context) (*jetstream.StreamConfig, error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	stream, err := b.js.Stream(ctx, b.cfg.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("nats broker: stream %s: %w", b.cfg.Stream, judged(err))
	}
	return &stream.CachedInfo().Config, nil
}
