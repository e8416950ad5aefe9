package rabbitmq

import (
	"context"
	"strings"
	"testing"

	"github.com/convergo/convergo/broker/brokertest"
	"github.com/convergo/convergo/store/sqlite"
)

// process is a consumer's process of its own, on this broker and SQLite.
func process() brokertest.Process {
	return brokertest.Process{
		Broker: func(ctx context.Context, place string) (brokertest.Broker, error) {
			part := strings.Split(place, " ")
			return Open(ctx, Config{Addrs: part[:1], User: part[1], Password: part[2], Prefix: part[3], Classic: part[4] == "classic"})
		},
		Database: func(ctx context.Context, file string) (brokertest.Database, error) {
			return sqlite.Open(ctx, file, sqlite.Options{Relaxed: true})
		},
	}
}

func TestAMessageThatKillsItsProcessIsADeadLetterAndTheOthersAreAppliedOnce(t *testing.T) {
	r := shared(t)
	for _, kind := range []string{"quorum", "classic"} { // a classic queue does not count deliveries
		t.Run(kind, func(t *testing.T) {
			cfg := config(r)
			cfg.Classic = kind == "classic"
			place := strings.Join([]string{r.Addr, r.User, r.Password, cfg.Prefix, kind}, " ")
			brokertest.Poison(t, brokertest.Backend{Broker: open(t, cfg)}, process(), place, nil)
		})
	}
}

func TestARollOutThatAddsAnEventTypeLosesNothing(t *testing.T) {
	cfg := config(shared(t))
	brokertest.RollOut(t, brokertest.Backend{
		Broker:  open(t, cfg),
		Another: func(t *testing.T) (brokertest.Broker, func()) { return open(t, cfg), nil },
	}, process())
}
