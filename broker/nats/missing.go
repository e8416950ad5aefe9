package nats

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// Missing tells what is not there yet and would be made, and makes nothing: it is what a Broker with Config.LookOnly is for. The
// error says what is there and does not fit, such as another number of partitions, with the remedy. Topics and consumers need
// nothing of their own here. Whether the account may make streams cannot be seen without making one.
func (b *Broker) Missing(ctx context.Context, _, _ []string) (missing []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*b.cfg.Timeout)
	defer cancel()
	var wrong []error
	stream, err := b.js.Stream(ctx, b.cfg.Stream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		missing = append(missing, "stream "+b.cfg.Stream)
		wrong = append(wrong, b.overlaps(ctx))
	case err != nil:
		err = judged(b.plain(err))
		if errors.Is(err, errNoJetStream) {
			return nil, err // true of the bucket too
		}
		wrong = append(wrong, fmt.Errorf("stream %s: %w", b.cfg.Stream, err))
	default:
		wrong = append(wrong, b.fits(stream.CachedInfo().Config))
	}
	_, err = b.js.Stream(ctx, "KV_"+b.bucketName())
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		missing = append(missing, "bucket "+b.bucketName())
	case err != nil:
		wrong = append(wrong, fmt.Errorf("bucket %s: %w", b.bucketName(), judged(b.plain(err))))
	}
	return missing, errors.Join(wrong...)
}

// overlaps tells of another stream that has the subjects: the server would refuse a second one.
func (b *Broker) overlaps(ctx context.Context) error {
	all := Layout{Prefix: b.cfg.Prefix}.All()
	list := b.js.StreamNames(ctx, jetstream.WithStreamListSubject(all))
	var found error
	for name := range list.Name() {
		if found == nil {
			found = fmt.Errorf("stream %s has the subjects %s already, so that stream %s cannot be made: set the stream (Config.Stream) to it, "+
				"or use another prefix (Config.Prefix)", name, all, b.cfg.Stream)
		}
	}
	if err := list.Err(); err != nil {
		return fmt.Errorf("streams with the subjects %s: %w", all, judged(b.plain(err)))
	}
	return found
}

var errLookOnly = errors.New("the broker was opened only to look at (Config.LookOnly): it neither publishes nor subscribes")
