package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/embedded"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/relay"
)

// broker is what the program needs of a broker, whichever it is.
type broker interface {
	relay.Publisher
	Subscribe(ctx context.Context, consumer string, subjects []convergo.Subject) (inbox.Source, error)
}

// checks is a broker that tells which of its settings can lose what it confirmed.
type checks interface {
	Check(ctx context.Context) ([]relay.Warning, error)
}

// connected is a broker and what its type alone knows.
type connected struct {
	broker
	close func() error
	// inside is set when the broker runs in this process and must be refilled after a crash.
	inside *embedded.Broker
}

// brokerSchemes are the brokers that --broker can name.
func brokerSchemes() []string { return []string{"embedded"} }

// brokerOptions are what is asked of every broker.
type brokerOptions struct {
	dir    string        // of an embedded one
	maxAge time.Duration // how long it keeps an event
	probe  convergo.Probe
	log    *slog.Logger
}

// connectBroker opens the broker at the address.
func connectBroker(ctx context.Context, text string, o brokerOptions) (*connected, error) {
	a, err := parseAddress(text)
	if err != nil {
		return nil, fmt.Errorf("--broker: %w", err)
	}
	switch a.Scheme {
	case "embedded":
		b, err := embedded.Open(ctx, embedded.Config{Dir: o.dir, MaxAge: o.maxAge, SyncInterval: syncInterval, Log: o.log, Probe: o.probe})
		if err != nil {
			return nil, err
		}
		return &connected{broker: b, inside: b, close: func() error { b.Close(); return nil }}, nil
	default:
		return nil, fmt.Errorf("--broker %s: there is no broker %q; there are %s", redacted(text), a.Scheme, strings.Join(brokerSchemes(), ", "))
	}
}

// warn logs the settings under which the broker can lose what it confirmed.
func (c *connected) warn(ctx context.Context, log *slog.Logger) error {
	b, ok := c.broker.(checks)
	if !ok {
		return nil
	}
	warnings, err := b.Check(ctx)
	if err != nil {
		return fmt.Errorf("check the broker's settings: %w", err)
	}
	for _, w := range warnings {
		log.Warn("the broker can lose what it confirmed", "setting", w.Setting, "value", w.Value, "want", w.Want, "loses", w.Loses)
	}
	return nil
}
