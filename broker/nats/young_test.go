package nats_test

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo/broker/nats"
	"github.com/convergo/convergo/testserver"
)

// A cluster that has just made a stream may answer for a moment that there is none: the server that is asked has not heard of it yet.
// Several processes that start at once on new servers meet it.
func TestAStreamThatIsBeingMadeIsWaitedFor(t *testing.T) {
	server := single(t)
	cfg := config(server)
	bucket := "$JS.API.STREAM.INFO.KV_" + cfg.Stream + "-consumers "
	var asked, hidden atomic.Int64
	cfg.URL = between(t, server.URL, func(b []byte) []byte {
		if bytes.Contains(b, []byte(bucket)) && asked.Add(1) == 2 { // the first time it is not there, the second time it was made
			hidden.Add(1)
			return bytes.Replace(b, []byte(bucket), []byte(bucket[:len(bucket)-2]+"x "), 1)
		}
		return b
	})
	open(t, cfg)
	if hidden.Load() != 1 {
		t.Errorf("the bucket was asked for %d times, and hidden %d times: want once, after it was made", asked.Load(), hidden.Load())
	}
}

func TestManyProcessesMayBeTheFirstOnACluster(t *testing.T) {
	server := testserver.Shared(t, &servers, "cluster", testserver.OpenNATSCluster)
	for range 5 {
		cfg := config(server)
		cfg.Timeout = time.Minute // sixteen streams at once, on whatever machine
		var all sync.WaitGroup
		for n := range 16 {
			cfg := cfg
			cfg.URL = server.Nodes[n%len(server.Nodes)].URL
			all.Go(func() {
				b, err := nats.Open(t.Context(), cfg)
				if err != nil {
					t.Errorf("process %d: %v", n, err)
					return
				}
				if err := b.Close(); err != nil {
					t.Errorf("process %d: %v", n, err)
				}
			})
		}
		all.Wait()
	}
}

// between is the address of somebody between the client and the server, who may change what the client says.
func between(t *testing.T, server string, change func([]byte) []byte) string {
	t.Helper()
	to, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			behind, err := net.Dial("tcp", to.Host)
			if err != nil {
				_ = client.Close()
				continue
			}
			serving.Go(func() { _, _ = io.Copy(client, behind); _ = client.Close() })
			serving.Go(func() {
				defer func() { _ = behind.Close() }()
				buffer := make([]byte, 64<<10)
				for {
					n, err := client.Read(buffer)
					if err != nil {
						return
					}
					if _, err := behind.Write(change(buffer[:n])); err != nil {
						return
					}
				}
			})
		}
	})
	here := *to
	here.Host = l.Addr().String()
	return here.String()
}
