package nats_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/convergo/convergo/broker/nats"
	"github.com/convergo/convergo/testserver"
)

func settings(t *testing.T, b *nats.Broker) []string {
	t.Helper()
	warnings, err := b.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, w := range warnings {
		if w.Value == "" || w.Want == "" || w.Loses == "" {
			t.Errorf("incomplete: %+v", w)
		}
		name, _, _ := strings.Cut(w.Setting, " of ")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func TestCheckFindsNothingOnAClusterThatSyncs(t *testing.T) {
	server := testserver.Shared(t, &servers, "cluster", testserver.OpenNATSCluster)
	cfg := config(server)
	cfg.MonitorURL = server.Nodes[0].Monitor
	if got := settings(t, open(t, cfg)); len(got) > 0 {
		t.Errorf("warnings about %v", got)
	}
}

func TestCheckSaysWhatItCannotSee(t *testing.T) {
	b := open(t, config(single(t)))
	if got := settings(t, b); !slices.Equal(got, []string{"replicas", "replicas", "sync_interval"}) { // of the stream and of the bucket
		t.Errorf("warnings about %v", got)
	}
}

func TestCheckNamesEveryLaxSetting(t *testing.T) {
	server := single(t)
	cfg := config(server)
	js := direct(t, server.URL)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: cfg.Stream, Subjects: []string{cfg.Prefix + ".*.*.*"}, Storage: jetstream.MemoryStorage, MaxAge: time.Hour, MaxBytes: 1 << 20, MaxMsgs: 1000,
		MaxMsgsPerSubject: 10, Duplicates: time.Second, MaxMsgSize: 1000, Retention: jetstream.InterestPolicy, Metadata: map[string]string{"convergo-partitions": "8"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"duplicate_window", "max_age", "max_bytes", "max_msg_size", "max_msgs", "max_msgs_per_subject", "replicas", "replicas", "retention",
		"storage", "sync_interval",
	}
	if got := settings(t, open(t, cfg)); !slices.Equal(got, want) {
		t.Errorf("warnings about %v\nwant %v", got, want)
	}
}
