package rocketmq

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/convergo/convergo"
)

// errClosed is what remains to say when a network was closed.
var errClosed = errors.New("the RocketMQ client is closed")

// ErrNotAllowed is wrapped when a server accepts Config.Credentials not at all, or not for what it was asked.
var ErrNotAllowed = errors.New("not allowed")

// refusal is an answer other than success.
type refusal struct {
	code   int
	remark string
}

func (r *refusal) Error() string {
	return fmt.Sprintf("the server answered %d: %s", r.code, firstLine(r.remark))
}

// Is tells errors.Is what an answer means.
func (r *refusal) Is(target error) bool { return target == ErrNotAllowed && r.code == answerNotAllowed }

// refusedWith is the code of the refusal in err's chain, -1 when there is none.
func refusedWith(err error) int {
	var r *refusal
	if errors.As(err, &r) {
		return r.code
	}
	return -1
}

// firstLine cuts what a server says to one line of a bearable length: a remark may be a whole stack trace.
func firstLine(s string) string {
	for i, r := range s {
		if r == '\n' || i >= 300 {
			return s[:i]
		}
	}
	return s
}

// network is one connection to each server that it is asked to talk to, made when it is needed and again after it broke.
type network struct {
	tls         *tls.Config
	credentials Credentials
	timeout     time.Duration // of one call, and of making a connection
	// asked handles a request of a server's: what it returns is sent back, nil for nothing. It runs on a goroutine of its own.
	asked func(ctx context.Context, address string, request *command) *command
	// broken is told that the connection to an address is no more.
	broken func(address string)

	ctx  context.Context // ends with close
	stop context.CancelFunc
	work sync.WaitGroup

	mu    sync.Mutex
	conns map[string]*dialing
}

// dialing is one connection, or the attempt to make it, which all who need it wait for together.
type dialing struct {
	done chan struct{}
	conn *connection
	err  error
}

func newNetwork(cfg Config) *network {
	ctx, stop := context.WithCancel(context.Background())
	return &network{
		tls: cfg.TLS, credentials: cfg.Credentials, timeout: cfg.Timeout, ctx: ctx, stop: stop, conns: map[string]*dialing{},
		asked: func(context.Context, string, *command) *command { return nil }, broken: func(string) {},
	}
}

// close breaks all connections and waits for what runs on them.
func (n *network) close() {
	n.mu.Lock()
	n.stop()
	conns := n.conns
	n.conns = map[string]*dialing{}
	n.mu.Unlock()
	for _, d := range conns {
		<-d.done
		if d.conn != nil {
			_ = d.conn.end(errClosed)
		}
	}
	n.work.Wait()
}

// call sends a request and waits for its answer, the network's timeout at most. An answer other than success is a *refusal;
// any other error is an outage.
func (n *network) call(ctx context.Context, address string, req *command) (*command, error) {
	answer, err := n.exchange(ctx, n.timeout, address, req)
	if err != nil {
		return nil, err
	}
	if answer.Code != answerSuccess {
		return answer, &refusal{answer.Code, answer.Remark}
	}
	return answer, nil
}

// exchange sends a request and waits for its answer, whatever it says. Its errors are outages.
func (n *network) exchange(ctx context.Context, timeout time.Duration, address string, req *command) (*command, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := n.connect(ctx, address)
	if err == nil {
		var answer *command
		if answer, err = c.exchange(ctx, req); err == nil {
			return answer, nil
		}
	}
	return nil, convergo.Unreachable(fmt.Errorf("RocketMQ server %s: %w", address, err))
}

// connect returns the connection to the address.
func (n *network) connect(ctx context.Context, address string) (*connection, error) {
	n.mu.Lock()
	if n.ctx.Err() != nil {
		n.mu.Unlock()
		return nil, errClosed
	}
	d, ok := n.conns[address]
	if !ok {
		d = &dialing{done: make(chan struct{})}
		n.conns[address] = d
		n.work.Go(func() { n.dial(address, d) })
	}
	n.mu.Unlock()
	select {
	case <-d.done:
		return d.conn, d.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// dial makes the connection. It does not end with the caller who happened to need it first.
func (n *network) dial(address string, d *dialing) {
	defer close(d.done)
	ctx, cancel := context.WithTimeout(n.ctx, n.timeout)
	defer cancel()
	var raw net.Conn
	if n.tls != nil {
		raw, d.err = (&tls.Dialer{Config: n.tls}).DialContext(ctx, "tcp", address)
	} else {
		raw, d.err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	if d.err != nil {
		n.forget(address, d)
		return
	}
	d.conn = &connection{raw: raw, network: n, address: address, waiting: map[int32]chan<- *command{}, ended: make(chan struct{})}
	n.work.Go(func() {
		err := d.conn.read()
		n.forget(address, d)
		_ = d.conn.end(err)
		n.broken(address)
	})
}

func (n *network) forget(address string, d *dialing) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conns[address] == d {
		delete(n.conns, address)
	}
}

// connection is one TCP connection, on which requests and answers of both sides are mixed.
type connection struct {
	raw     net.Conn
	network *network
	address string

	writing sync.Mutex

	mu      sync.Mutex
	last    int32
	waiting map[int32]chan<- *command
	err     error
	ended   chan struct{} // closed when err is set
}

func (c *connection) exchange(ctx context.Context, req *command) (*command, error) {
	answer := make(chan *command, 1)
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, c.err
	}
	c.last++
	sent := *req
	sent.Opaque = c.last
	c.waiting[sent.Opaque] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, sent.Opaque)
		c.mu.Unlock()
	}()
	if err := c.write(ctx, &sent); err != nil {
		return nil, err
	}
	select {
	case a := <-answer:
		return a, nil
	case <-c.ended:
		return nil, c.err
	case <-ctx.Done():
		return nil, fmt.Errorf("no answer: %w", ctx.Err())
	}
}

// write sends a frame. A frame that was written in part ends the connection.
func (c *connection) write(ctx context.Context, cmd *command) error {
	c.network.credentials.sign(cmd)
	frame, err := cmd.frame()
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	// Not the caller's deadline: a frame that is cut short would break the connection for everybody.
	err = c.raw.SetWriteDeadline(time.Now().Add(c.network.timeout))
	if err == nil {
		_, err = c.raw.Write(frame)
	}
	if err != nil {
		return c.end(err)
	}
	return nil
}

// end breaks the connection: all who wait for an answer are told. It returns why the connection ended, which is the first
// reason there was.
func (c *connection) end(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = fmt.Errorf("connection lost: %w", err)
		close(c.ended)
		_ = c.raw.Close() // whatever it says, the connection is not used again
	}
	return c.err
}

func (c *connection) read() error {
	r := bufio.NewReaderSize(c.raw, 64*1024)
	for {
		cmd, err := readCommand(r)
		if err != nil {
			return err
		}
		if !cmd.isAnswer() {
			c.network.work.Go(func() { c.serve(cmd) })
			continue
		}
		c.mu.Lock()
		answer := c.waiting[cmd.Opaque]
		delete(c.waiting, cmd.Opaque)
		c.mu.Unlock()
		if answer != nil {
			answer <- cmd // has room for one, and gets one
		}
	}
}

func (c *connection) serve(req *command) {
	answer := c.network.asked(c.network.ctx, c.address, req)
	if answer == nil || req.Flag&flagOneWay != 0 {
		return
	}
	answer.Opaque, answer.Flag = req.Opaque, flagAnswer
	_ = c.write(c.network.ctx, answer) // the server asks again, or does not care
}
