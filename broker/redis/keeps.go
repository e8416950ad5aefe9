package redis

import (
	"context"
	"fmt"

	"github.com/convergo/convergo/relay"
)

// Keeps tells how long the streams keep an event that every consumer is done with. That is a matter of this client alone: the server
// removes nothing by itself.
func (b *Broker) Keeps(_ context.Context, _ []string) ([]relay.Kept, error) {
	k := relay.Kept{Where: "streams " + b.cfg.Prefix + ":*", Setting: "keep-broker (Config.MaxAge) without limit"}
	if b.cfg.MaxAge != Forever {
		k.Age = b.cfg.MaxAge + b.cfg.TrimEvery
		k.Setting = fmt.Sprintf("keep-broker (Config.MaxAge) %v, trimmed every %v", b.cfg.MaxAge, b.cfg.TrimEvery)
	}
	return []relay.Kept{k}, nil
}
