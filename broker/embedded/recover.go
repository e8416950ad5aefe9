package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
)

// Recovery is what opening found to be lost. The zero value means nothing.
type Recovery struct {
	// Events that were in the folder and could not be read: damaged or cut off files.
	Events int
	// Rewound consumers had a position beyond the stream's end, as after a power cut; they go on at its end.
	Rewound []string
	// Forgotten consumers had a position that could not be read; they start again at the stream's beginning.
	Forgotten []string
}

// Lost tells whether anything was lost.
func (r Recovery) Lost() bool { return r.Events > 0 || len(r.Rewound) > 0 || len(r.Forgotten) > 0 }

// String is a sentence for the operator, with the remedy.
func (r Recovery) String() string {
	if !r.Lost() {
		return "nothing was lost"
	}
	return fmt.Sprintf("%d events could not be read; consumers set back to the end of the stream: %v; consumers that start again from the "+
		"beginning: %v; replay the outboxes over the time that may be affected", r.Events, r.Rewound, r.Forgotten)
}

// Recovery tells what opening found to be lost.
func (b *Broker) Recovery() Recovery { return b.recovery }

// held is what a folder claims to hold before the server reads it.
type held struct {
	stream    bool
	consumers []string
}

func inventory(dir string) (held, error) {
	stream := filepath.Join(dir, "jetstream", "$G", "streams", streamName)
	if _, err := os.Stat(stream); errors.Is(err, os.ErrNotExist) {
		return held{}, nil
	} else if err != nil {
		return held{}, fmt.Errorf("embedded broker in %s: %w", dir, err)
	}
	h := held{stream: true}
	entries, err := os.ReadDir(filepath.Join(stream, "obs"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return held{}, fmt.Errorf("embedded broker in %s: %w", dir, err)
	}
	for _, e := range entries {
		h.consumers = append(h.consumers, e.Name())
	}
	return h, nil
}

// prepare makes the stream, or takes over the one that was there.
func (b *Broker) prepare(ctx context.Context, before held) error {
	stream, err := b.js.Stream(ctx, streamName)
	missing := errors.Is(err, jetstream.ErrStreamNotFound)
	if err != nil && !missing {
		return err
	}
	if missing && before.stream {
		return errors.New("its stream cannot be read (the files that describe it are damaged): nothing was changed; " +
			"move the folder away, start again, and replay the outboxes")
	}
	config := jetstream.StreamConfig{
		Name: streamName, Subjects: []string{"ev.>"}, Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy,
		Discard: jetstream.DiscardOld, MaxAge: b.cfg.MaxAge, MaxBytes: -1, AllowDirect: true,
	}
	if b.cfg.MaxBytes > 0 {
		config.MaxBytes = b.cfg.MaxBytes
	}
	if stream, err = b.js.CreateOrUpdateStream(ctx, config); err != nil {
		return fmt.Errorf("stream: %w", err)
	}
	if err := b.recoverConsumers(ctx, stream, before); err != nil {
		return fmt.Errorf("consumers: %w", err)
	}
	if b.recovery.Events, err = b.lostEvents(ctx); err != nil {
		return err
	}
	if b.recovery.Lost() {
		b.cfg.Log.Warn("embedded broker: "+b.recovery.String(), "dir", b.cfg.Dir)
	}
	return nil
}

// recoverConsumers puts every consumer to where it may go on. Nobody but this process can hold a delivery, so what an
// earlier life left unacknowledged is due at once and before anything newer; without the reset it would come after
// AckWait and behind later events of its aggregate.
func (b *Broker) recoverConsumers(ctx context.Context, stream jetstream.Stream, before held) error {
	last := stream.CachedInfo().State.LastSeq
	var found []string
	list := stream.ListConsumers(ctx)
	for info := range list.Info() {
		found = append(found, info.Name)
		var err error
		switch {
		case info.Delivered.Stream > last || info.AckFloor.Stream > last:
			b.recovery.Rewound = append(b.recovery.Rewound, info.Name)
			err = b.reset(ctx, info.Name, last+1)
		case info.NumAckPending > 0:
			err = b.reset(ctx, info.Name, info.AckFloor.Stream+1)
		}
		if err != nil {
			return err
		}
	}
	for _, name := range before.consumers {
		if !slices.Contains(found, name) {
			b.recovery.Forgotten = append(b.recovery.Forgotten, name)
		}
	}
	return list.Err()
}

func (b *Broker) reset(ctx context.Context, consumer string, seq uint64) error {
	request, err := json.Marshal(map[string]uint64{"seq": seq})
	if err != nil {
		return err
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := b.ask(ctx, "CONSUMER.RESET."+streamName+"."+consumer, request, &answer); err != nil {
		return fmt.Errorf("reset %s: %w", consumer, err)
	}
	if answer.Error != nil {
		return fmt.Errorf("reset %s: %w", consumer, answer.Error)
	}
	return nil
}

func (b *Broker) lostEvents(ctx context.Context) (int, error) {
	var answer struct {
		State struct {
			Lost *struct {
				Msgs []uint64 `json:"msgs"`
			} `json:"lost"`
		} `json:"state"`
	}
	if err := b.ask(ctx, "STREAM.INFO."+streamName, nil, &answer); err != nil {
		return 0, fmt.Errorf("stream: %w", err)
	}
	if answer.State.Lost == nil {
		return 0, nil
	}
	return len(answer.State.Lost.Msgs), nil
}

// ask calls the server's API where the client has no method for it.
func (b *Broker) ask(ctx context.Context, operation string, request []byte, answer any) error {
	reply, err := b.conn.RequestWithContext(ctx, "$JS.API."+operation, request)
	if err != nil {
		return err
	}
	return json.Unmarshal(reply.Data, answer)
}
