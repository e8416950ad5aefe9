package nats

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/convergo/convergo"
)

// readerConfig is a reader on the server: it keeps nothing, begins behind a sequence, and goes when nobody asks it.
func (b *Broker) readerConfig(n int, subjects []convergo.Subject, after uint64) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		FilterSubjects: b.publisher.Layout.Filters(subjects, strconv.Itoa(n)), DeliverPolicy: jetstream.DeliverByStartSequencePolicy,
		OptStartSeq: after + 1, AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: time.Minute,
	}
}

// readAll reads until ctx ends. A reader that fails in any way is replaced by one that goes on behind the last message.
func (p *partition) readAll(ctx context.Context) {
	pause := time.NewTicker(100 * time.Millisecond)
	defer pause.Stop()
	for ctx.Err() == nil {
		err := p.readSome(ctx)
		if ctx.Err() != nil {
			return
		}
		p.group.broker.suspect()
		p.group.broker.cfg.Log.Debug("nats broker: reader", "consumer", p.group.consumer, "partition", p.n, "error", err)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
}

var errGap = errors.New("a message was lost on its way")

func (p *partition) readSome(ctx context.Context) error {
	b := p.group.broker
	config, err := p.next(ctx)
	if err != nil {
		return err
	}
	create, cancel := context.WithTimeout(ctx, b.patience())
	defer cancel()
	reader, err := b.js.CreateConsumer(create, b.cfg.Stream, config)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = b.js.DeleteConsumer(ctx, b.cfg.Stream, reader.CachedInfo().Name) // it goes by itself when nobody asks it
	}()
	heartbeat := min(max(b.cfg.Lease/5, 500*time.Millisecond), 5*time.Second)
	messages, err := reader.Messages(jetstream.PullMaxMessages(256), jetstream.PullExpiry(30*time.Second), jetstream.PullHeartbeat(heartbeat))
	if err != nil {
		return err
	}
	defer messages.Stop()
	defer context.AfterFunc(ctx, messages.Stop)()
	for expected := uint64(1); ; expected++ {
		m, err := messages.Next()
		if err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		if meta.Sequence.Consumer != expected {
			return errGap
		}
		if err := p.add(ctx, m, meta); err != nil {
			return err
		}
	}
}

// next is where to go on. The stream may have lost its end, after a power cut or in a restore, and given the sequences that
// were read to other events since: then a new reader begins shortly before the time of the last message that was read; what came
// after that was never read. Of another stream of the same name nothing was read.
func (p *partition) next(ctx context.Context) (jetstream.ConsumerConfig, error) {
	b := p.group.broker
	ctx, cancel := context.WithTimeout(ctx, b.patience())
	defer cancel()
	p.group.mu.Lock()
	read, from := p.read, p.from
	p.group.mu.Unlock()
	stream, err := b.js.Stream(ctx, b.cfg.Stream)
	if err != nil {
		return jetstream.ConsumerConfig{}, err
	}
	info := stream.CachedInfo()
	made := info.Created.UnixNano()
	other := read.Stream != 0 && read.Stream != made
	if other {
		b.cfg.Log.Warn("nats broker: the stream is another one than the one that was read: it is read from its beginning; "+
			"`convergo replay --since` refills it from the outboxes", "consumer", p.group.consumer, "partition", p.n, "sequence", read.Seq)
		read, from = position{}, time.Time{}
	}
	config := b.readerConfig(p.n, p.subjects, read.Seq)
	if from.IsZero() && read.Seq > 0 {
		same, err := b.same(ctx, stream, read)
		if err != nil {
			return config, err
		}
		if !same {
			const margin = 10 * time.Second // for servers' clocks that differ
			from = time.Unix(0, read.At).Add(-margin)
			b.cfg.Log.Warn("nats broker: the stream has lost its end: what it has since is read again; "+
				"replay the outboxes over that time", "consumer", p.group.consumer, "partition", p.n, "sequence", read.Seq, "from", from)
		}
	}
	if !from.IsZero() {
		config.DeliverPolicy, config.OptStartSeq, config.OptStartTime = jetstream.DeliverByStartTimePolicy, 0, &from
	}
	p.group.mu.Lock()
	defer p.group.mu.Unlock()
	p.from = from
	if other {
		p.done.Seq, p.done.At, p.read = 0, 0, position{}
	}
	p.done.Stream = made
	p.read.Stream = made
	return config, nil
}

// same tells whether the stream still has what was read, or may have let it go for its age.
func (b *Broker) same(ctx context.Context, stream jetstream.Stream, read position) (bool, error) {
	if state := stream.CachedInfo().State; read.Seq > state.LastSeq {
		return false, nil
	}
	m, err := stream.GetMsg(ctx, read.Seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("message %d: %w", read.Seq, err)
	}
	return m.Time.UnixNano() == read.At, nil
}

// add puts a message behind the others, once there is room.
func (p *partition) add(ctx context.Context, m jetstream.Msg, meta *jetstream.MsgMetadata) error {
	i := &item{seq: meta.Sequence.Stream, at: meta.Timestamp.UnixNano(), size: len(m.Data())}
	i.event, i.malformed = Decode(m.Headers(), m.Data())
	g := p.group
	for {
		g.mu.Lock()
		if p.closed {
			g.mu.Unlock()
			return context.Canceled
		}
		if len(p.items) == 0 || (len(p.items) < mostItems && p.bytes < mostBytes) {
			break
		}
		g.mu.Unlock()
		select {
		case <-p.room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer g.mu.Unlock()
	if p.deaths > 0 && i.seq > p.stored.Seq {
		i.attempt = p.deaths // it may have been what its readers died of
	}
	p.items = append(p.items, i)
	p.bytes += i.size
	p.read.Seq, p.read.At = i.seq, i.at
	p.from = time.Time{}
	if !p.leaving {
		g.signal()
	}
	return nil
}
