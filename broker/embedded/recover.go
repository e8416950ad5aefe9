package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Recovery is what opening found to be lost. The zero value means nothing.
type Recovery struct {
	// Events that were confirmed and are no longer there, as far as that can be told: damaged, cut off or missing files. The
	// last moments before a power cut leave no trace; Durability says how long they are.
	Events int
	// Forgotten consumers had a position that could not be read; they start again at the stream's beginning.
	Forgotten []string
}

// Lost tells whether anything was lost.
func (r Recovery) Lost() bool { return r.Events > 0 || len(r.Forgotten) > 0 }

// String is a sentence for the operator, with the remedy.
func (r Recovery) String() string {
	if !r.Lost() {
		return "nothing was lost"
	}
	text := fmt.Sprintf("%d events that were stored are no longer there: replay the outboxes over the time that may be affected", r.Events)
	if len(r.Forgotten) > 0 {
		text += fmt.Sprintf("; consumers that start again from the beginning: %v", r.Forgotten)
	}
	return text
}

// Recovery tells what opening found to be lost.
func (b *Broker) Recovery() Recovery { return b.recovery }

// mark is what the broker notes about its stream in a file of its own, at each clean start and end, so that a later start
// can tell what went missing in between. After a kill it is old, and still true.
type mark struct {
	Last    uint64    `json:"last"`    // sequence of the stream's last event
	LastAt  time.Time `json:"last_at"` // when that was stored
	Events  uint64    `json:"events"`  // how many there were
	Missing int       `json:"missing"` // how many gaps were told of already
}

const markFile = "convergo-stream.json"

func readMark(dir string) (mark, error) {
	var m mark
	text, err := os.ReadFile(filepath.Join(dir, markFile))
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("embedded broker in %s: %w", dir, err)
	}
	if json.Unmarshal(text, &m) != nil {
		return mark{}, nil // a note that cannot be read is no note
	}
	return m, nil
}

// note writes the mark; a reader sees the old one or the new one.
func (b *Broker) note(state jetstream.StreamState) error {
	text, err := json.Marshal(mark{state.LastSeq, state.LastTime, state.Msgs, state.NumDeleted})
	if err != nil {
		return err
	}
	path := filepath.Join(b.cfg.Dir, markFile)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// missing counts events that were there and are not: gaps (nobody deletes single events from this stream), an end before
// the end that was noted, and a beginning after it although nothing of it is old enough to leave.
func (b *Broker) missing(m mark, state jetstream.StreamState, now time.Time) int {
	n := max(state.NumDeleted-m.Missing, 0)
	if state.LastSeq < m.Last {
		n += int(m.Last - state.LastSeq)
	}
	young := m.LastAt.Add(b.cfg.MaxAge).After(now) && b.cfg.MaxBytes == 0
	if young && m.Events > 0 && state.FirstSeq > m.Last {
		n += int(m.Events)
	}
	return n
}

// held is what a folder claims to hold before the server reads it.
type held struct {
	stream    bool
	consumers []string
	mark      mark
}

func inventory(dir string) (held, error) {
	m, err := readMark(dir)
	if err != nil {
		return held{}, err
	}
	stream := filepath.Join(dir, "jetstream", "$G", "streams", streamName)
	if _, err := os.Stat(stream); errors.Is(err, os.ErrNotExist) {
		return held{stream: m.Last > 0, mark: m}, nil
	} else if err != nil {
		return held{}, fmt.Errorf("embedded broker in %s: %w", dir, err)
	}
	h := held{stream: true, mark: m}
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
	if before.stream {
		if _, err := b.js.Stream(ctx, streamName); err != nil {
			return fmt.Errorf("its stream cannot be read, the files that describe it or a consumer are damaged or missing (%w): nothing "+
				"was changed; move the folder away, start again, and replay the outboxes; if a consumer is named, it is enough to move its "+
				"folder below obs away", err)
		}
	}
	config := jetstream.StreamConfig{
		Name: streamName, Subjects: []string{layout().All()}, Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy,
		Discard: jetstream.DiscardOld, MaxAge: b.cfg.MaxAge, MaxBytes: -1, AllowDirect: true,
	}
	if b.cfg.MaxBytes > 0 {
		config.MaxBytes = b.cfg.MaxBytes
	}
	stream, err := b.js.CreateOrUpdateStream(ctx, config)
	if err != nil {
		return fmt.Errorf("stream: %w", err)
	}
	if err := b.recoverConsumers(ctx, stream, before); err != nil {
		return fmt.Errorf("consumers: %w", err)
	}
	state := stream.CachedInfo().State
	b.recovery.Events = b.missing(before.mark, state, time.Now())
	if b.recovery.Lost() {
		b.cfg.Log.Warn("embedded broker: "+b.recovery.String(), "dir", b.cfg.Dir)
	}
	return b.note(state)
}

// recoverConsumers puts every consumer to where it may go on. Nobody but this process can hold a delivery, so what an
// earlier life left unacknowledged is due at once and before anything newer; without the reset it would come after
// AckWait and behind later events of its aggregate. Those that were acknowledged out of turn come again with it.
func (b *Broker) recoverConsumers(ctx context.Context, stream jetstream.Stream, before held) error {
	var found []string
	list := stream.ListConsumers(ctx)
	for info := range list.Info() {
		found = append(found, info.Name)
		if info.NumAckPending == 0 {
			continue
		}
		if err := b.reset(ctx, info.Name); err != nil {
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

// reset takes the consumer back to the first event that it has not acknowledged. The client has no method for it.
func (b *Broker) reset(ctx context.Context, consumer string) error {
	reply, err := b.conn.RequestWithContext(ctx, "$JS.API.CONSUMER.RESET."+streamName+"."+consumer, nil)
	if err != nil {
		return fmt.Errorf("reset %s: %w", consumer, err)
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return fmt.Errorf("reset %s: %w", consumer, err)
	}
	if answer.Error != nil {
		return fmt.Errorf("reset %s: %w", consumer, answer.Error)
	}
	return nil
}
