package rocketmq

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo/broker/brokertest"
	"github.com/convergo/convergo/store/sqlite"
)

// process is a consumer's process of its own, on this broker and SQLite.
func process() brokertest.Process {
	return brokertest.Process{
		Broker: func(ctx context.Context, place string) (brokertest.Broker, error) {
			part := strings.Split(place, " ")
			term, err := time.ParseDuration(part[3])
			if err != nil {
				return nil, err
			}
			return Open(ctx, Config{NameServers: part[:1], Cluster: part[1], Prefix: part[2], LockTerm: term})
		},
		Database: func(ctx context.Context, file string) (brokertest.Database, error) {
			return sqlite.Open(ctx, file, sqlite.Options{Relaxed: true})
		},
	}
}

func TestAMessageThatKillsItsProcessIsADeadLetterAndTheOthersAreAppliedOnce(t *testing.T) {
	server := shared(t)
	cfg := configOf(server, prefix())
	place := strings.Join([]string{server.NameServer, server.Cluster, cfg.Prefix, server.LockTerm.String()}, " ")
	brokertest.Poison(t, brokertest.Backend{Broker: open(t, cfg)}, process(), place, nil)
}

func TestARollOutThatAddsAnEventTypeLosesNothing(t *testing.T) {
	cfg := configOf(shared(t), prefix())
	brokertest.RollOut(t, brokertest.Backend{
		Broker:  open(t, cfg),
		Another: func(t *testing.T) (brokertest.Broker, func()) { return open(t, cfg), nil },
	}, process())
}
