package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/convergo/convergo/testserver"
)

// The platform lives on while its broker is replaced by an empty one. What was on its way is sent again from the outboxes.
func TestABrokerThatLostItsDataIsRefilledByAReplayWhileThePlatformRuns(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) (address string, empty func() error){
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
			p := startPlatform(t, dir, append(quickly(), "--payment-window", "1h", "--broker", address)...)
			p.stock("CUP", 500, 10)
			bearer := p.session("u-1")
			payable := func(ref string) {
				t.Helper()
				if v := p.wait(bearer, p.place(bearer, ref, "CUP", 1).OrderNo, "payable"); !v.IsPayable {
					t.Fatalf("order %s is not payable: %s %s", ref, v.Status, v.Reason)
				}
			}
			payable("r-0")
			p.settled(serviceNames()...)
			testserver.Must(t, empty())
			if r := runProgram(context.Background(), "replay", "--data", dir, "--since", "1h", "--broker", address); r.code != 0 {
				t.Fatalf("replay: %d %s%s", r.code, r.out.String(), r.err.String())
			}
			payable("r-1")
			eventually(t, 45*time.Second, "every consumer has what was sent", func() bool {
				return runProgram(t.Context(), "check", "--data", dir, "--settle", "1s").code == 0
			})
			p.end(0)
			converged(t.Context(), t, dir)
		})
	}
}
