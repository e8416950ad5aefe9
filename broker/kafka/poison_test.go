package kafka

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
			cfg := settings(addr)
			cfg.Prefix, cfg.AckWait = prefix, time.Minute
			return Open(ctx, cfg)
		},
		Database: func(ctx context.Context, file string) (brokertest.Database, error) {
			return sqlite.Open(ctx, file, sqlite.Options{Relaxed: true})
		},
	}
}

func TestAMessageThatKillsItsProcessIsADeadLetterAndTheOthersAreAppliedOnce(t *testing.T) {
	server := testserver.Shared(t, &servers, "kafka", testserver.OpenKafka)
	cfg := settings(server.Addr)
	brokertest.Poison(t, brokertest.Backend{Broker: open(t, cfg)}, process(), cfg.Seeds[0]+" "+cfg.Prefix, nil)
}

func TestARollOutThatAddsAnEventTypeLosesNothing(t *testing.T) {
	cfg := settings(testserver.Shared(t, &servers, "kafka", testserver.OpenKafka).Addr)
	brokertest.RollOut(t, brokertest.Backend{
		Broker:  open(t, cfg),
		Another: func(t *testing.T) (brokertest.Broker, func()) { return open(t, cfg), nil },
	}, process())
}
