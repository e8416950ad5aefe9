package nats_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo/broker/brokertest"
	"github.com/convergo/convergo/broker/nats"
	"github.com/convergo/convergo/store/sqlite"
)

// process is a consumer's process of its own, on this broker and SQLite.
func process() brokertest.Process {
	return brokertest.Process{
		Broker: func(ctx context.Context, place string) (brokertest.Broker, error) {
			part := strings.Split(place, " ")
			return nats.Open(ctx, nats.Config{URL: part[0], Stream: part[1], Prefix: part[2], Lease: 2 * time.Second})
		},
		Database: func(ctx context.Context, file string) (brokertest.Database, error) {
			return sqlite.Open(ctx, file, sqlite.Options{Relaxed: true})
		},
	}
}

func TestAMessageThatKillsItsProcessIsADeadLetterAndTheOthersAreAppliedOnce(t *testing.T) {
	cfg := config(single(t))
	brokertest.Poison(t, brokertest.Backend{Broker: open(t, cfg)}, process(), cfg.URL+" "+cfg.Stream+" "+cfg.Prefix, nil)
}

func TestARollOutThatAddsAnEventTypeLosesNothing(t *testing.T) {
	cfg := config(single(t))
	brokertest.RollOut(t, brokertest.Backend{
		Broker:  open(t, cfg),
		Another: func(t *testing.T) (brokertest.Broker, func()) { return open(t, cfg), nil },
	}, process())
}
