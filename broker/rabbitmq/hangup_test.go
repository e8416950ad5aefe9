package rabbitmq

import (
	"errors"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// deaf is a connection that the server ended with a reason, which it gave before it was asked for anything: a server that refuses a client's
// certificate does so after the client's handshake is complete.
type deaf struct {
	net.Conn
	closed atomic.Bool
}

var errTold = errors.New("remote error: tls: unknown certificate authority")

func (d *deaf) Write(b []byte) (int, error) {
	if runtime.Gosched(); d.closed.Load() {
		return 0, net.ErrClosed
	}
	return len(b), nil
}

func (d *deaf) Close() error                   { d.closed.Store(true); return nil }
func (*deaf) Read([]byte) (int, error)         { return 0, errTold }
func (*deaf) SetDeadline(time.Time) error      { return nil }
func (*deaf) SetReadDeadline(time.Time) error  { return nil }
func (*deaf) SetWriteDeadline(time.Time) error { return nil }

// The library forgets the reason when it hears it before it has sent its first word.
func TestTheReasonWhyAServerEndsAConnectionIsToldHoweverSoonItComes(t *testing.T) {
	l := &link{cfg: Config{Timeout: time.Minute}}
	missing := 0
	for range 5000 {
		if _, err := l.handshake(t.Context(), &deaf{}, "127.0.0.1"); err == nil || !strings.Contains(err.Error(), errTold.Error()) {
			missing++
		}
	}
	if missing > 0 {
		t.Errorf("%d of 5000 errors say nothing of the reason", missing)
	}
}
