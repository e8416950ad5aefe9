package nats_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/nats"
	"github.com/convergo/convergo/testlog"
)

// withoutJetStream starts a server that was told nothing of JetStream.
func withoutJetStream(t *testing.T) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not start")
	}
	return s
}

func TestAServerOrAnAccountWithoutJetStreamIsToldAtOnceWithTheRemedy(t *testing.T) {
	t.Parallel()
	shop := server.NewAccount("SHOP")
	cases := map[string]*server.Server{
		"server": withoutJetStream(t),
		"account": inProcess(t, server.Options{
			Accounts: []*server.Account{shop}, Users: []*server.User{{Username: "convergo", Password: "right", Account: shop}},
		}),
	}
	for name, s := range cases {
		for look, what := range map[bool]string{true: "looked at", false: "opened"} {
			t.Run(name+" "+what, func(t *testing.T) {
				began := time.Now()
				b, err := nats.Open(t.Context(), nats.Config{
					URL: s.ClientURL(), User: "convergo", Password: "right", LookOnly: look, Timeout: time.Minute,
				})
				if err == nil {
					_, err = b.Missing(t.Context(), nil, nil)
					_ = b.Close()
				}
				if err == nil || !strings.Contains(err.Error(), "JetStream is not enabled") || !strings.Contains(err.Error(), "nats-server with -js") {
					t.Fatalf("error %v", err)
				}
				if took := time.Since(began); took >= time.Minute || convergo.VerdictOf(err) != convergo.Park && !look {
					t.Errorf("after %v, verdict %v: %v", took, convergo.VerdictOf(err), err)
				}
			})
		}
	}
}

func TestWhatThisProcessEndsItselfIsNoLostConnection(t *testing.T) {
	t.Parallel()
	var lines testlog.Lines
	log := slog.New(slog.NewTextHandler(&lines, nil))
	b, err := nats.Open(t.Context(), nats.Config{URL: inProcess(t, server.Options{}).ClientURL(), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	ended := b.Ended()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended // the client tells of a loss before it tells of the end
	if strings.Contains(lines.String(), "connection lost") {
		t.Error(lines.String())
	}
}

func TestAnEventForAServerThatIsAwayIsRefusedAsNotConnected(t *testing.T) {
	t.Parallel()
	s := inProcess(t, server.Options{})
	b := open(t, nats.Config{URL: strings.Replace(s.ClientURL(), "://", "://convergo:hidden@", 1)})
	away := b.Away()
	s.Shutdown()
	s.WaitForShutdown()
	<-away
	err := b.Publish(t.Context(), []convergo.Event{paid("O-1", 1)})[0]
	if err == nil || convergo.VerdictOf(err) != convergo.Outage || !strings.HasSuffix(err.Error(), "not connected to "+s.ClientURL()) {
		t.Errorf("error %v", err)
	}
}

func TestANewConnectionIsToldToThoseWhoWait(t *testing.T) {
	t.Parallel()
	b := open(t, nats.Config{URL: inProcess(t, server.Options{}).ClientURL()})
	back := make(chan struct{}, 2)
	for range 2 {
		b.OnBack(func() { back <- struct{}{} })
	}
	if err := b.Reconnect(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		select {
		case <-back:
		case <-time.After(20 * time.Second):
			t.Fatal("nobody was told")
		}
	}
}
