package embedded

import (
	"context"
	"testing"
	"time"

	"github.com/convergo/convergo/broker/brokertest"
	"github.com/convergo/convergo/store/sqlite"
)

// process is a consumer's process of its own, on this broker and SQLite.
func process() brokertest.Process {
	return brokertest.Process{
		Broker: func(ctx context.Context, place string) (brokertest.Broker, error) {
			return Open(ctx, Config{Dir: place, AckWait: time.Minute})
		},
		Database: func(ctx context.Context, file string) (brokertest.Database, error) {
			return sqlite.Open(ctx, file, sqlite.Options{Relaxed: true})
		},
	}
}

func TestAMessageThatKillsItsProcessIsADeadLetterAndTheOthersAreAppliedOnce(t *testing.T) {
	dir := t.TempDir()
	b := open(t, Config{Dir: dir})
	brokertest.Poison(t, brokertest.Backend{Broker: b}, process(), dir, b.Close)
}
