package nats

import (
	"context"

	"github.com/nats-io/nats.go"

	"github.com/convergo/convergo"
)

// Die ends the broker as the death of its process would: nothing is given back and nobody is told.
func (b *Broker) Die() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closing = true
	b.conn.Close()
	for _, g := range b.groups {
		g.cancel()
	}
}

// Ended is closed when the client has told everything about the connection's end.
func (b *Broker) Ended() <-chan struct{} {
	ended := make(chan struct{})
	b.conn.SetClosedHandler(func(*nats.Conn) { close(ended) })
	return ended
}

// Away tells when the client has noticed that its server is gone.
func (b *Broker) Away() <-chan nats.Status { return b.conn.StatusChanged(nats.RECONNECTING) }

// Reconnect loses the connection and makes another.
func (b *Broker) Reconnect() error { return b.conn.ForceReconnect() }

// DeleteStream takes away what stores the messages.
func (b *Broker) DeleteStream() error {
	return b.js.DeleteStream(context.Background(), b.cfg.Stream)
}

// PublishRaw sends a message as another program could.
func (b *Broker) PublishRaw(ctx context.Context, subject string, headers map[string]string, payload []byte) error {
	m := &nats.Msg{Subject: b.cfg.Prefix + "." + subject, Data: payload, Header: nats.Header{}}
	for name, value := range headers {
		m.Header.Set(name, value)
	}
	_, err := b.js.PublishMsg(ctx, m)
	return err
}

// MovePosition sets the position of the partition of an aggregate, as after a loss of the stream's end.
func (b *Broker) MovePosition(ctx context.Context, consumer string, a convergo.Aggregate, seq uint64) error {
	n := b.publisher.Layout.Partition(a)
	p, revision, err := b.readPosition(ctx, consumer, n)
	if err != nil {
		return err
	}
	p.Seq = seq
	_, err = b.write(ctx, positionKey(consumer, n), p, revision)
	return err
}
