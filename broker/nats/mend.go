package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/convergo/convergo"
)

// mendEvery is the least time between two looks for what the servers have lost.
const mendEvery = time.Second

// suspect has the stream and the bucket looked for soon: something failed as if they were gone. It does not wait.
func (b *Broker) suspect() { poke(b.suspected) }

// keepMending makes the stream and the bucket again when the servers have lost them, until the broker is closed.
func (b *Broker) keepMending() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { <-b.closed; cancel() }()
	pace := time.NewTicker(mendEvery)
	defer pace.Stop()
	for {
		select {
		case <-b.closed:
			return
		case <-b.suspected:
		}
		if b.conn.IsConnected() {
			if err := b.mend(ctx); convergo.VerdictOf(err) == convergo.Park {
				b.cfg.Log.Error("nats broker: what the server lost cannot be made again", "url", b.url, "error", err)
			} else if err != nil {
				b.cfg.Log.Debug("nats broker: look for stream and bucket", "url", b.url, "error", err)
			}
		}
		select {
		case <-b.closed:
			return
		case <-pace.C:
		}
	}
}

// mend looks for the stream and the bucket, and makes what is missing.
func (b *Broker) mend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	const lost = "nats broker: the server has lost its data: `convergo replay --since` refills it from the outboxes"
	_, err := b.js.Stream(ctx, b.cfg.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if _, err = b.stream(ctx); err == nil {
			b.cfg.Log.Warn(lost, "url", b.url, "made again", "stream "+b.cfg.Stream)
		}
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", b.cfg.Stream, judged(err))
	}
	bucket, err := b.openBucket(ctx)
	if err != nil {
		return err
	}
	made, err := madeAt(ctx, bucket)
	if err != nil {
		return err
	}
	if b.bucketMade.Swap(made) != made {
		b.cfg.Log.Warn(lost, "url", b.url, "made again", "bucket "+b.bucketName())
		b.poke()
	}
	return nil
}

// madeAt is when a bucket was made: revisions and positions mean nothing in another one of the same name.
func madeAt(ctx context.Context, bucket jetstream.KeyValue) (int64, error) {
	status, err := bucket.Status(ctx)
	if err != nil {
		return 0, fmt.Errorf("bucket %s: %w", bucket.Bucket(), judged(err))
	}
	s, ok := status.(*jetstream.KeyValueBucketStatus)
	if !ok {
		return 0, fmt.Errorf("bucket %s: its state is a %T", bucket.Bucket(), status)
	}
	return s.StreamInfo().Created.UnixNano(), nil
}

// unheard tells whether nothing on the servers takes what was sent, as when a stream is gone.
func unheard(err error) bool {
	return errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrStreamNotFound)
}

// renew lets go of what another bucket has said, when the bucket is not the one that this group has known: its partitions are taken
// anew, and read from the beginning where the new bucket has no position.
func (g *group) renew() {
	made := g.broker.bucketMade.Load()
	if made == g.bucket {
		return
	}
	known := g.bucket != 0
	g.bucket = made
	if !known {
		return
	}
	g.revision, g.behind = 0, time.Time{}
	clear(g.seen)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.parts {
		p.lost = true
	}
}
