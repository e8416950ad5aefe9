package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// Check looks for settings under which something confirmed can be lost, or an event that an outbox takes is refused. An empty
// answer means that none was found. How often the servers sync is seen only with Config.MonitorURL.
func (b *Broker) Check(ctx context.Context) ([]relay.Warning, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*b.cfg.Timeout)
	defer cancel()
	stream, err := b.js.Stream(ctx, b.cfg.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) && b.cfg.LookOnly {
		return b.plan(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("nats broker: check: %w", judged(err))
	}
	bucket, err := b.js.Stream(ctx, "KV_"+b.bucketName())
	if errors.Is(err, jetstream.ErrStreamNotFound) && b.cfg.LookOnly {
		return b.plan(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("nats broker: check: %w", judged(err))
	}
	config := stream.CachedInfo().Config
	warnings := storage("stream "+config.Name, config, "events that were confirmed")
	warnings = append(warnings, storage("bucket "+b.bucketName(), bucket.CachedInfo().Config, "how far each consumer came, so that it reads all again")...)
	warnings = append(warnings, limits(config)...)
	warnings = append(warnings, b.sizes(config)...)
	sync, err := b.syncs(ctx, config.Replicas)
	if err != nil {
		return nil, fmt.Errorf("nats broker: check: %w", err)
	}
	return append(warnings, sync...), nil
}

// plan is about a stream that is yet to be made.
func (b *Broker) plan(ctx context.Context) ([]relay.Warning, error) {
	config := jetstream.StreamConfig{Name: b.cfg.Stream, Storage: jetstream.FileStorage, Replicas: b.replicas()}
	sync, err := b.syncs(ctx, config.Replicas)
	if err != nil {
		return nil, fmt.Errorf("nats broker: check: %w", err)
	}
	warnings := storage("stream "+config.Name+", to be made,", config, "events that were confirmed")
	return slices.Concat(warnings, b.sizes(config), sync), nil
}

func storage(name string, c jetstream.StreamConfig, what string) (warnings []relay.Warning) {
	add := func(setting, value, want, loses string) {
		warnings = append(warnings, relay.Warning{Setting: setting + " of " + name, Value: value, Want: want, Loses: loses})
	}
	if c.Storage != jetstream.FileStorage {
		add("storage", strings.ToLower(c.Storage.String()), "file", "the end of its servers loses "+what)
	}
	if c.Replicas < 3 {
		add("replicas", fmt.Sprint(c.Replicas), "3", "the loss of one server's disk loses "+what)
	}
	if c.PersistMode == jetstream.AsyncPersistMode {
		add("persist_mode", "async", "default", "a killed server loses "+what+" in its last moments")
	}
	return warnings
}

// limits under which an event leaves before every consumer had it.
func limits(c jetstream.StreamConfig) (warnings []relay.Warning) {
	const leaves = "the oldest events leave before a consumer that is behind has had them"
	add := func(setting string, value any, want, loses string) {
		warnings = append(warnings, relay.Warning{Setting: setting + " of stream " + c.Name, Value: fmt.Sprint(value), Want: want, Loses: loses})
	}
	if c.Retention != jetstream.LimitsPolicy {
		add("retention", strings.ToLower(c.Retention.String()), "limits", "an event goes when JetStream's own consumers have had it; ours are none of those")
	}
	if c.Discard == jetstream.DiscardOld {
		if c.MaxBytes > 0 {
			add("max_bytes", c.MaxBytes, "-1 (no limit), or discard new", leaves)
		}
		if c.MaxMsgs > 0 {
			add("max_msgs", c.MaxMsgs, "-1 (no limit), or discard new", leaves)
		}
	}
	if c.MaxMsgsPerSubject > 0 {
		add("max_msgs_per_subject", c.MaxMsgsPerSubject, "-1 (no limit)", leaves)
	}
	if c.MaxAge > 0 && c.MaxAge < 24*time.Hour {
		add("max_age", c.MaxAge, "24h0m0s or more", "a consumer that is away for longer never gets what was published meanwhile, and a replay cannot tell")
	}
	if c.Duplicates < 30*time.Second {
		add("duplicate_window", c.Duplicates, "30s or more", "nothing, but what a relay sent before it died arrives twice")
	}
	if c.NoAck {
		add("no_ack", true, "false", "nothing is ever confirmed, so everything is sent again and again")
	}
	return warnings
}

// sizes that refuse events which an outbox takes.
func (b *Broker) sizes(c jetstream.StreamConfig) (warnings []relay.Warning) {
	const loses = "larger events, with their headers, become dead events, unless they are refused when they are written (outbox.Config.MaxPayload)"
	want := fmt.Sprintf("%d or more", maxMessage)
	if n := b.conn.MaxPayload(); n < maxMessage {
		warnings = append(warnings, relay.Warning{Setting: "max_payload of the server", Value: fmt.Sprint(n), Want: want, Loses: loses})
	}
	if n := c.MaxMsgSize; n > 0 && n < maxMessage {
		warnings = append(warnings, relay.Warning{Setting: "max_msg_size of stream " + c.Name, Value: fmt.Sprint(n), Want: want, Loses: loses})
	}
	return warnings
}

// syncs asks the monitoring port how often the server syncs its disk. By default that is every two minutes.
func (b *Broker) syncs(ctx context.Context, replicas int) ([]relay.Warning, error) {
	loses := "a power cut loses what was confirmed since the last sync"
	if replicas > 1 {
		loses = "a power cut of most servers at once loses what was confirmed since the last sync"
	}
	w := relay.Warning{Setting: "sync_interval of the servers", Want: "always", Loses: loses}
	if b.cfg.MonitorURL == "" {
		w.Value = "not visible to a client: set monitor (Config.MonitorURL) to the URL of a server's monitoring port"
		return []relay.Warning{w}, nil
	}
	config, err := monitored(ctx, b.cfg.MonitorURL)
	if err != nil {
		return nil, err
	}
	if config.SyncAlways {
		return nil, nil
	}
	w.Value = config.SyncInterval.String()
	return []relay.Warning{w}, nil
}

type jetStreamConfig struct {
	SyncAlways   bool          `json:"sync_always"`
	SyncInterval time.Duration `json:"sync_interval"`
}

func monitored(ctx context.Context, base string) (jetStreamConfig, error) {
	var answer struct {
		JetStream *struct {
			Config *jetStreamConfig `json:"config"`
		} `json:"jetstream"`
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(base, "/")+"/varz", nil)
	if err != nil {
		return jetStreamConfig{}, errors.New("monitor (Config.MonitorURL) is no URL such as http://host:8222") // it may hold a password
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return jetStreamConfig{}, convergo.Unreachable(err) // the client hides passwords
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return jetStreamConfig{}, fmt.Errorf("the monitoring port's answer (%s): %w", response.Status, err)
	}
	if answer.JetStream == nil || answer.JetStream.Config == nil {
		return jetStreamConfig{}, errors.New("the monitored server has no JetStream")
	}
	return *answer.JetStream.Config, nil
}
