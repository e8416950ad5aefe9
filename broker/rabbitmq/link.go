package rabbitmq

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/convergo/convergo"
)

var errClosed = errors.New("the broker is closed")

// shortLived is the age under which a lost connection counts as a failed try to connect.
const shortLived = time.Second

// link is one connection that is made again when it was lost. Publishing and consuming have one each: the server stops
// reading from a connection that publishes while it is short of memory or disk, and acknowledgements must not wait for that.
type link struct {
	cfg     Config
	name    string
	blocked atomic.Pointer[string] // why the server takes no publishes now; nil when it does

	turn   chan struct{} // holds one token: whoever has it may look at and change what is below
	conn   *amqp.Connection
	since  time.Time
	fails  int
	after  time.Time // no try before
	last   error
	closed bool

	mu    sync.Mutex
	raw   net.Conn // under owner
	owner *amqp.Connection
}

func newLink(cfg Config, role string) *link {
	l := &link{cfg: cfg, name: cfg.Name + " " + role, turn: make(chan struct{}, 1)}
	l.turn <- struct{}{}
	return l
}

// get returns the connection, or tries to make it when it is time for a try. Its errors are outages.
func (l *link) get(ctx context.Context) (*amqp.Connection, error) {
	select {
	case <-l.turn:
		defer func() { l.turn <- struct{}{} }()
	case <-ctx.Done():
		return nil, convergo.Unreachable(ctx.Err())
	}
	switch {
	case l.closed:
		return nil, convergo.Unreachable(errClosed)
	case l.conn != nil && !l.conn.IsClosed():
		return l.conn, nil
	case l.conn != nil && time.Since(l.since) > shortLived:
		l.fails = 0
	}
	if time.Now().Before(l.after) {
		return nil, convergo.Unreachable(l.last)
	}
	conn, err := l.connect(ctx)
	if err != nil {
		l.fails++
		l.last = err
		if ctx.Err() == nil {
			l.after = time.Now().Add(l.cfg.Reconnect.Delay(l.fails))
		}
		return nil, convergo.Unreachable(err)
	}
	l.fails++ // until it has lived for a while
	l.last = errors.New("the connection was lost as soon as it was made")
	l.after = time.Now().Add(l.cfg.Reconnect.Delay(l.fails))
	l.conn, l.since = conn, time.Now()
	return conn, nil
}

func (l *link) connect(ctx context.Context) (*amqp.Connection, error) {
	var errs []error
	for _, addr := range l.cfg.Addrs {
		conn, err := l.dial(ctx, addr)
		if err == nil {
			l.watch(conn)
			return conn, nil
		}
		errs = append(errs, fmt.Errorf("connect to %s: %w", addr, err))
	}
	return nil, errors.Join(errs...)
}

// dial connects within Config.Timeout, TLS and log-in included.
func (l *link) dial(ctx context.Context, addr string) (*amqp.Connection, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() }) // a handshake heeds no context
	conn, err := l.handshake(ctx, raw, host)
	if !stop() {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	l.mu.Lock()
	l.raw, l.owner = raw, conn
	l.mu.Unlock()
	return conn, nil
}

func (l *link) handshake(ctx context.Context, raw net.Conn, host string) (*amqp.Connection, error) {
	if err := raw.SetDeadline(time.Now().Add(l.cfg.Timeout)); err != nil { // the library takes it away after the log-in
		return nil, err
	}
	transport := raw
	if l.cfg.TLS != nil {
		settings := l.cfg.TLS.Clone()
		if settings.ServerName == "" {
			settings.ServerName = host
		}
		client := tls.Client(raw, settings)
		if err := client.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		transport = client
	}
	properties := amqp.NewConnectionProperties()
	properties["product"] = "convergo"
	properties["connection_name"] = l.name
	p := &patient{Conn: transport, timeout: l.cfg.Timeout}
	conn, err := amqp.Open(p, amqp.Config{
		Vhost: l.cfg.VHost, SASL: l.sasl(), Heartbeat: l.cfg.Heartbeat, FrameSize: 128 << 10, Locale: "en_US", Properties: properties,
	})
	return conn, p.why(err)
}

func (l *link) sasl() []amqp.Authentication {
	switch c := l.cfg; {
	case c.User != "" || c.Password != "":
		return []amqp.Authentication{&amqp.PlainAuth{Username: c.User, Password: c.Password}}
	case c.TLS != nil && (len(c.TLS.Certificates) > 0 || c.TLS.GetClientCertificate != nil):
		return []amqp.Authentication{&amqp.ExternalAuth{}}
	default:
		return []amqp.Authentication{&amqp.PlainAuth{Username: "guest", Password: "guest"}}
	}
}

// watch notes alarms of the server and the end of the connection.
func (l *link) watch(conn *amqp.Connection) {
	alarms := conn.NotifyBlocked(make(chan amqp.Blocking, 16))
	ended := conn.NotifyClose(make(chan *amqp.Error, 1))
	l.blocked.Store(nil)
	go func() {
		for a := range alarms {
			if a.Active {
				l.blocked.Store(&a.Reason)
				l.cfg.Log.Warn("rabbitmq takes no publishes", "connection", l.name, "reason", a.Reason)
			} else {
				l.blocked.Store(nil)
				l.cfg.Log.Info("rabbitmq takes publishes again", "connection", l.name)
			}
		}
		l.blocked.Store(nil)
		if err := <-ended; err != nil {
			l.cfg.Log.Warn("connection to rabbitmq lost", "connection", l.name, "error", err)
		}
	}()
}

// close ends the connection for good.
func (l *link) close() {
	<-l.turn
	conn := l.conn
	l.closed = true
	l.turn <- struct{}{}
	if conn != nil && !conn.IsClosed() {
		_ = conn.CloseDeadline(time.Now().Add(l.cfg.Timeout)) // what was confirmed is confirmed; nothing else is at stake
	}
}

// patient bounds every write: a server with an alarm stops reading, and a write without a deadline would wait for its end.
type patient struct {
	net.Conn
	timeout time.Duration
	ended   atomic.Pointer[error] // why nothing more can be read
}

func (p *patient) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	if err != nil {
		why := err // err itself stays off the heap
		p.ended.CompareAndSwap(nil, &why)
	}
	return n, err
}

// why is err, or the reason that the server gave when it ended the connection. The library's reader may hear of that before the log-in has
// said its first word, which then fails without it: nothing may be sent any more, or the library has closed its side already. So a server
// ends it that does not take a client's certificate: it says so when the client's handshake is complete.
func (p *patient) why(err error) error {
	reason := p.ended.Load()
	var write *net.OpError
	switch {
	case reason == nil, errors.Is(*reason, net.ErrClosed), errors.Is(*reason, os.ErrDeadlineExceeded): // our own doing
		return err
	case errors.Is(err, amqp.ErrClosed), errors.Is(err, net.ErrClosed), errors.As(err, &write):
		return fmt.Errorf("the server ended the connection: %w", *reason)
	}
	return err
}

func (p *patient) Write(b []byte) (int, error) {
	if err := p.SetWriteDeadline(time.Now().Add(p.timeout)); err != nil {
		return 0, err
	}
	return p.Conn.Write(b)
}

// within bounds a request to the server, for which the library waits without end: after Config.Timeout the connection is cut, which
// ends the wait, and a new one is made.
func (b *Broker) within(conn *amqp.Connection, what string, ask func() error) error {
	answer := make(chan error, 1)
	go func() { answer <- ask() }()
	patience := time.NewTimer(b.cfg.Timeout)
	defer patience.Stop()
	select {
	case err := <-answer:
		return err
	case <-patience.C:
		b.consume.cut(conn)
		return fmt.Errorf("%s: no answer within %v: if the server has no other trouble, the queue has no leader: "+
			"`rabbitmq-queues quorum_status` tells, and a queue without one must be deleted", what, b.cfg.Timeout)
	}
}

// cut ends the connection without a word.
func (l *link) cut(conn *amqp.Connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.raw != nil && l.owner == conn {
		_ = l.raw.Close()
	}
}
