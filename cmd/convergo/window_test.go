package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/testserver"
)

// longKept is a broker that somebody set up beforehand to keep events for longer than marks are kept.
type longKept struct {
	address string
	says    []string // what is found about it
	flags   []string // that fit together all the same
}

func longKeepers() map[string]func(t *testing.T) longKept {
	return map[string]func(t *testing.T) longKept{
		"nats": func(t *testing.T) longKept {
			server := testserver.Own(t, testserver.OpenNATS)
			conn := must[*nats.Conn](t)(nats.Connect(server.URL))
			t.Cleanup(conn.Close)
			js := must[jetstream.JetStream](t)(jetstream.New(conn))
			must[jetstream.Stream](t)(js.CreateStream(t.Context(), jetstream.StreamConfig{
				Name: "CONVERGO", Subjects: []string{"ev.*.*.*"}, MaxAge: 30 * 24 * time.Hour, Metadata: map[string]string{"convergo-partitions": "8"},
			}))
			return longKept{server.URL + "/?lease=2s", []string{"stream CONVERGO keeps events up to 720h0m0s (max_age 720h0m0s)", "--keep-inbox above 720h0m0s"}, nil}
		},
		"kafka": func(t *testing.T) longKept {
			server := testserver.Own(t, testserver.OpenKafka)
			client := must[*kgo.Client](t)(kgo.NewClient(kgo.SeedBrokers(server.Addr)))
			t.Cleanup(client.Close)
			forever := map[string]*string{"retention.ms": kadm.StringPtr("-1")}
			must[kadm.CreateTopicResponse](t)(kadm.NewClient(client).CreateTopic(t.Context(), 8, 1, forever, "order")) // without a prefix
			return longKept{"kafka://" + server.Addr + "?replicas=1&prefix=-", []string{"topic order keeps events without limit (retention.ms -1)"}, nil}
		},
		"rocketmq": func(t *testing.T) longKept {
			server := testserver.Own(t, testserver.OpenRocketMQ)
			return longKept{
				fmt.Sprintf("rocketmq://%s?cluster=%s&lease=%v", server.NameServer, server.Cluster, server.LockTerm),
				[]string{"keeps events up to 96h0m0s (fileReservedTime 72 hours", "--keep-inbox above 96h0m0s"}, []string{"--keep-inbox", "80h", "--keep-broker", "72h"},
			}
		},
	}
}

// --keep-broker sets up what this program makes. Where a topic or a stream keeps events for longer, all the same, an event could come again
// when its mark is gone: the doctor says so beforehand and serve when it starts, with what to do. Both let it run: see decision 28.
func TestWhatTheBrokerReallyKeepsIsHeldAgainstTheMarks(t *testing.T) {
	for name, open := range longKeepers() {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			args := append([]string{"--services", "order,inventory,risk", "--broker", b.address}, b.flags...)
			says(t, findings(t, 0, args...), "retention", levelWarning, b.says[0])
			for _, words := range append(b.says, "is applied twice", "(--keep-inbox)") {
				says(t, findings(t, 0, args...), "retention", levelWarning, words)
			}
			p := shares(t, t.TempDir(), b.address, b.flags...)
			for _, words := range b.says {
				if !strings.Contains(p.err.String(), words) {
					t.Errorf("the log does not say %q:\n%s", words, p.err.String())
				}
			}
			p.end(0)
		})
	}
}

// What this program makes by its defaults is kept for less than the marks.
func TestTheDefaultsFitTogetherAtEveryBroker(t *testing.T) {
	for name, open := range brokerPatients(t) {
		t.Run(name, func(t *testing.T) {
			p := open(t)
			r := shares(t, t.TempDir(), p.address)
			shopAt(r).order() // Kafka makes topics when they are used
			found := findings(t, 0, "--services", "order,inventory,risk", "--broker", p.address)
			says(t, found, "retention", levelOK, "consumers remember for 336h0m0s, the broker keeps up to ")
			if strings.Contains(r.err.String(), "applied twice") {
				t.Error(r.err.String())
			}
		})
	}
}

func TestWhatIsKeptForLongerThanMarksIsNamed(t *testing.T) {
	t.Parallel()
	kept := []relay.Kept{{Where: "topic a", Setting: "x 1", Age: time.Hour}, {Where: "topic b", Setting: "x 2", Age: 2 * time.Hour}, {Where: "topic c", Setting: "x -1"}}
	got := overlong(kept, 2*time.Hour)
	if len(got) != 2 || !strings.HasPrefix(got[0], "topic b keeps events up to 2h0m0s (x 2)") || !strings.HasPrefix(got[1], "topic c keeps events without limit (x -1)") {
		t.Errorf("%q", got)
	}
	if strings.Contains(got[1], "or set --keep-inbox") {
		t.Errorf("no --keep-inbox is long enough: %s", got[1])
	}
}
