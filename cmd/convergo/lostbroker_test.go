package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/convergo/convergo/testserver"
)

// The platform lives on while its broker is replaced by an empty one. What is sent again from the outboxes must reach every consumer,
// and so must what is sent afterwards, in the life of this process and of the next one: a position of the old data that was kept or
// committed would pass over events without a word.
func TestABrokerThatLostItsDataIsRefilledByAReplayWhileThePlatformRuns(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) (address string, empty func() error){
		"kafka": func(t *testing.T) (string, func() error) {
			s := testserver.Own(t, testserver.OpenKafka)
			return "kafka://" + s.Addr + "?replicas=1", s.Empty
		},
		"rabbitmq": func(t *testing.T) (string, func() error) {
			s := testserver.Own(t, func() (*testserver.RabbitMQ, error) { return testserver.OpenRabbitMQ() })
			return "amqp://" + s.User + ":" + s.Password + "@" + s.Addr, s.Empty
		},
		"nats": func(t *testing.T) (string, func() error) {
			s := testserver.Own(t, testserver.OpenNATS)
			return s.URL + "/?lease=2s", s.Empty
		},
		"redis": func(t *testing.T) (string, func() error) {
			s := testserver.Own(t, testserver.OpenRedis)
			return "redis://" + s.Addr, s.Empty
		},
		"rocketmq": func(t *testing.T) (string, func() error) {
			s := testserver.Own(t, testserver.OpenRocketMQ)
			return fmt.Sprintf("rocketmq://%s?cluster=%s&lease=%v", s.NameServer, s.Cluster, s.LockTerm), s.Empty
		},
	} {
		t.Run(name, func(t *testing.T) {
			address, empty := open(t)
			dir := t.TempDir()
			args := append(quickly(), "--payment-window", "1h", "--broker", address)
			p := startPlatform(t, dir, args...)
			p.stock("CUP", 500, 10)
			bearer := p.session("u-1")
			payable := func(ref string) {
				t.Helper()
				began := time.Now()
				no := p.place(bearer, ref, "CUP", 1).OrderNo
				v := p.wait(bearer, no, "payable")
				if !v.IsPayable { // RabbitMQ takes nothing for 10 s
					v = p.wait(bearer, no, "payable")
				}
				if !v.IsPayable {
					t.Fatalf("order %s is not payable: %s %s", ref, v.Status, v.Reason)
				}
				t.Logf("order %s is payable after %s", ref, time.Since(began).Round(time.Millisecond))
			}
			payable("r-0")
			p.settled(serviceNames()...)
			testserver.Must(t, empty())
			if r := runProgram(context.Background(), "replay", "--data", dir, "--since", "1h", "--broker", address); r.code != 0 {
				t.Fatalf("replay: %d %s%s", r.code, r.out.String(), r.err.String())
			}
			payable("r-1")
			p.settled(serviceNames()...)
			p.end(0)
			p = startPlatform(t, dir, args...)
			bearer = p.session("u-1")
			payable("r-2")
			eventually(t, 45*time.Second, "every consumer has what was sent", func() bool {
				return runProgram(t.Context(), "check", "--data", dir, "--settle", "1s").code == 0
			})
			p.end(0)
			converged(t.Context(), t, dir)
		})
	}
}
