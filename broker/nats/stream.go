package nats

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/convergo/convergo"
)

// partitionsKey is where a stream's metadata says into how many partitions its subjects divide.
const partitionsKey = "convergo-partitions"

// maxMessage fits the largest event: payload, its own headers, the headers of its fields and the protocol's separators.
const maxMessage = convergo.MaxPayloadBytes + 4*convergo.MaxHeaderBytes

// prepare makes what is missing on the server, and refuses a stream that this broker would misread.
func (b *Broker) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 4*b.cfg.Timeout)
	defer cancel()
	var err error
	// Several relays share the connection: the client's own limit on what is on its way must be far above theirs.
	if b.js, err = jetstream.New(b.conn, jetstream.WithPublishAsyncMaxPending(1<<20), jetstream.WithDefaultTimeout(b.cfg.Timeout)); err != nil {
		return err
	}
	if b.cfg.LookOnly {
		return nil
	}
	var stream jetstream.Stream
	if err := b.insist(ctx, func(ctx context.Context) (err error) { stream, err = b.stream(ctx); return err }); err != nil {
		return err
	}
	if err := b.insist(ctx, b.findBucket); err != nil {
		return err
	}
	config := stream.CachedInfo().Config
	largest := min(maxMessage, int(b.conn.MaxPayload()))
	if config.MaxMsgSize > 0 {
		largest = min(largest, int(config.MaxMsgSize))
	}
	b.publisher = &Publisher{
		JetStream: b.js, Stream: b.cfg.Stream, Layout: Layout{Prefix: b.cfg.Prefix, Partitions: b.cfg.Partitions}, Window: b.cfg.Window,
		MaxMessage: largest, Closed: b.closed, Probe: b.cfg.Probe, Server: b.url, Unheard: b.suspect,
	}
	return nil
}

func (b *Broker) replicas() int {
	switch {
	case b.cfg.Replicas > 0:
		return b.cfg.Replicas
	case b.conn.ConnectedClusterName() != "":
		return 3
	default:
		return 1
	}
}

func (b *Broker) stream(ctx context.Context) (jetstream.Stream, error) {
	stream, err := b.js.Stream(ctx, b.cfg.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = b.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: b.cfg.Stream, Description: "Convergo: all events", Subjects: []string{Layout{Prefix: b.cfg.Prefix}.All()},
			Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, MaxAge: b.cfg.MaxAge,
			Duplicates: min(b.cfg.Dedup, b.cfg.MaxAge), Replicas: b.replicas(), AllowDirect: true,
			Metadata: map[string]string{partitionsKey: strconv.Itoa(b.cfg.Partitions)},
		})
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another instance was quicker, with other settings
			stream, err = b.js.Stream(ctx, b.cfg.Stream)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", b.cfg.Stream, judged(b.plain(err)))
	}
	if err := b.fits(stream.CachedInfo().Config); err != nil {
		return nil, convergo.Permanent(err)
	}
	return stream, nil
}

// fits refuses a stream whose subjects mean something else: an aggregate's events would come to two readers at once.
func (b *Broker) fits(config jetstream.StreamConfig) error {
	switch found := config.Metadata[partitionsKey]; {
	case found == "":
		return fmt.Errorf("stream %s exists and is none of Convergo's (its metadata has no %s): name another one (Config.Stream)",
			b.cfg.Stream, partitionsKey)
	case found != strconv.Itoa(b.cfg.Partitions):
		return fmt.Errorf("stream %s has %s partitions and partitions (Config.Partitions) is %d: set that to %s; to change the number, let every consumer "+
			"finish, stop every process (one that runs makes again what is deleted), delete the stream and its bucket, and start again",
			b.cfg.Stream, found, b.cfg.Partitions, found)
	}
	all := Layout{Prefix: b.cfg.Prefix}.All()
	if len(config.Subjects) != 1 || config.Subjects[0] != all {
		return fmt.Errorf("stream %s has the subjects %v, want %s: set the prefix (Config.Prefix) to the first part of its subject, or name another stream",
			b.cfg.Stream, config.Subjects, all)
	}
	return nil
}

func (b *Broker) bucketName() string { return b.cfg.Stream + "-consumers" }

// findBucket opens the bucket, and notes which one it is.
func (b *Broker) findBucket(ctx context.Context) (err error) {
	if b.bucket, err = b.openBucket(ctx); err != nil {
		return err
	}
	made, err := madeAt(ctx, b.bucket)
	b.bucketMade.Store(made)
	return err
}

func (b *Broker) openBucket(ctx context.Context) (jetstream.KeyValue, error) {
	name := b.bucketName()
	bucket, err := b.js.KeyValue(ctx, name)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		bucket, err = b.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: name, Description: "Convergo: who reads what, and how far each consumer came", History: 1,
			Storage: jetstream.FileStorage, Replicas: b.replicas(),
		})
		if errors.Is(err, jetstream.ErrBucketExists) {
			bucket, err = b.js.KeyValue(ctx, name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", name, judged(err))
	}
	return bucket, nil
}

// errNoJetStream is what a server means that answers no request of the kind, or says so in its own words.
var errNoJetStream = errors.New("JetStream is not enabled on this server (or for this account): start nats-server with -js and a folder " +
	"for its data (-sd), or set jetstream in its configuration file, and enable it for the account when the server has several")

// plain says what an error of the JetStream API means. A server without JetStream says so when it is connected to; when it stands alone
// nobody else can answer, and another try changes nothing. One of a cluster may only be passing requests on, to servers that are
// down now; and where the server has it, a request without a listener may be one that came before the account was ready.
func (b *Broker) plain(err error) error {
	if errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) {
		return convergo.Permanent(fmt.Errorf("%w: %w", errNoJetStream, err))
	}
	if !errors.Is(err, nats.ErrNoResponders) || !b.conn.IsConnected() {
		return err
	}
	err = fmt.Errorf("%w: %w", errNoJetStream, err)
	if enabled, _ := b.conn.ConnectedServerJetStream(); enabled || b.conn.ConnectedClusterName() != "" {
		return err
	}
	return convergo.Permanent(err)
}

// judged tells an outage from a refusal, which stays until somebody changes a setting. A cluster without enough servers
// answers 400 too. A stream that is not found is an outage: what is missing is made, here or by another process, and a server of a
// cluster may not have heard yet of what was made a moment ago.
func judged(err error) error {
	const (
		noPeers  = 10005 // "no suitable peers for placement"
		noCopies = 10074 // "replicas > 1 not supported in non-clustered mode"
	)
	passes := func(code jetstream.ErrorCode) bool {
		return code == noPeers || code == jetstream.JSErrCodeStreamNotFound
	}
	var api *jetstream.APIError
	if errors.Is(err, nats.ErrReconnectBufExceeded) { // the client's words for it: nothing is buffered, see Config.options
		return convergo.Unreachable(errors.New("not connected to the server"))
	}
	if convergo.VerdictOf(err) == convergo.Park || errors.As(err, &api) && (api.Code < 500 && !passes(api.ErrorCode) || api.ErrorCode == noCopies) {
		return err
	}
	return convergo.Unreachable(err)
}
