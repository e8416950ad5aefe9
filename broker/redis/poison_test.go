package redis

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo/broker/brokertest"
	"github.com/convergo/convergo/store/sqlite"
	"github.com/convergo/convergo/testserver"
)

// process is a consumer's process of its own, on this broker and SQLite.
func process() brokertest.Process {
	return brokertest.Process{
		Broker: func(ctx context.Context, place string) (brokertest.Broker, error) {
			addr, prefix, _ := strings.Cut(place, " ")
			return Open(ctx, Config{Addr: addr, Prefix: prefix, Lease: 1500 * time.Millisecond})
		},
		Database: func(ctx context.Context, file string) (brokertest.Database, error) {
			return sqlite.Open(ctx, file, sqlite.Options{Relaxed: true})
		},
	}
}

func TestAMessageThatKillsItsProcessIsADeadLetterAndTheOthersAreAppliedOnce(t *testing.T) {
	server := testserver.Shared(t, &servers, "redis", testserver.OpenRedis)
	cfg := settings(server)
	brokertest.Poison(t, brokertest.Backend{Broker: open(t, cfg)}, process(), cfg.Addr+" "+cfg.Prefix, nil)
}

func TestARollOutThatAddsAnEventTypeLosesNothing(t *testing.T) {
	cfg := settings(testserver.Shared(t, &servers, "redis", testserver.OpenRedis))
	brokertest.RollOut(t, brokertest.Backend{
		Broker:  open(t, cfg),
		Another: func(t *testing.T) (brokertest.Broker, func()) { return open(t, cfg), nil },
	}, process())
}
