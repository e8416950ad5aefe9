package nats_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/convergo/convergo/broker/nats"
	"github.com/convergo/convergo/relay"
)

func kept(t *testing.T, b *nats.Broker) relay.Kept {
	t.Helper()
	all, err := b.Keeps(t.Context(), nil)
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	return all[0]
}

// Config.MaxAge is for a stream that is made; one that is there keeps its own.
func TestHowLongAStreamReallyKeepsEventsIsSeen(t *testing.T) {
	server := single(t)
	cfg := config(server)
	b := open(t, cfg)
	if k := kept(t, b); k.Age != 7*24*time.Hour || k.Where != "stream "+cfg.Stream {
		t.Errorf("a stream as we make it: %+v", k)
	}
	js := direct(t, server.URL)
	stream, err := js.Stream(t.Context(), cfg.Stream)
	if err != nil {
		t.Fatal(err)
	}
	changed := stream.CachedInfo().Config
	changed.MaxAge = 30 * 24 * time.Hour
	if _, err := js.UpdateStream(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	if k := kept(t, b); k.Age != changed.MaxAge || k.Setting != "max_age 720h0m0s" {
		t.Errorf("a stream that somebody changed: %+v", k)
	}
	forever := config(server)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: forever.Stream, Subjects: []string{forever.Prefix + ".*.*.*"}, Metadata: map[string]string{"convergo-partitions": "8"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if k := kept(t, open(t, forever)); k.Age != 0 || k.Setting != "max_age 0s" {
		t.Errorf("without limit: %+v", k)
	}
	forever.Stream, forever.Prefix, forever.LookOnly = "NONE", "none", true
	if all, err := open(t, forever).Keeps(t.Context(), nil); err != nil || len(all) != 0 {
		t.Errorf("a stream that is not there: %+v, %v", all, err)
	}
}
