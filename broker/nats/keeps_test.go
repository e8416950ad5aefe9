package nats_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/nats"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/testserver"
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

// The room that is told is enough: an event of that size is taken, with the longest headers of its fields.
func TestAnEventThatFillsTheRoomIsTaken(t *testing.T) {
	const server, stream = 20_000, 15_000
	cfg := config(testserver.Own(t, testserver.OpenNATSWith(fmt.Sprint("max_payload: ", server))))
	for _, c := range []struct {
		setting string
		limit   int
	}{{fmt.Sprintf("max_payload %d of the server", server), server}, {fmt.Sprintf("max_msg_size %d of stream %s", stream, cfg.Stream), stream}} {
		b := open(t, cfg)
		room, err := b.Room(t.Context(), nil)
		if err != nil || room.Setting != c.setting || room.Payload > c.limit || room.Payload < c.limit-5000 {
			t.Fatalf("%+v, %v", room, err)
		}
		e := paid(strings.Repeat("o", convergo.MaxKeyBytes), 1)
		e.Key, e.MessageID = convergo.Key(strings.Repeat("k", convergo.MaxKeyBytes)), strings.Repeat("m", convergo.MaxKeyBytes)
		e.Type, e.Origin, e.Position = strings.Repeat("T", convergo.MaxNameBytes), strings.Repeat("p", convergo.MaxNameBytes), int64(c.limit)
		e.Payload = make([]byte, room.Payload)
		publish(t, b, e)
		js := direct(t, cfg.URL)
		made, err := js.Stream(t.Context(), cfg.Stream)
		if err != nil {
			t.Fatal(err)
		}
		changed := made.CachedInfo().Config
		changed.MaxMsgSize = stream
		if _, err := js.UpdateStream(t.Context(), changed); err != nil {
			t.Fatal(err)
		}
	}
}
