package kafka

import (
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/testserver"
)

// What counts is what the cluster does, not what this Broker would set up: topics are made and changed by others too.
func TestHowLongATopicReallyKeepsEventsIsSeen(t *testing.T) {
	b := open(t, settings(testserver.Shared(t, &servers, "kafka", testserver.OpenKafka).Addr))
	kept := func(topics ...string) relay.Kept {
		t.Helper()
		all, err := b.Keeps(t.Context(), topics)
		if err != nil || len(all) != 1 || all[0].Where != "topic "+b.topicName("order") {
			t.Fatalf("%+v, %v", all, err)
		}
		return all[0]
	}
	if _, err := b.Missing(t.Context(), []string{"order"}, nil); err != nil { // which asks for it
		t.Fatal(err)
	}
	if all, err := b.Keeps(t.Context(), []string{"order"}); err != nil || len(all) != 0 {
		t.Errorf("a topic that is not there: %+v, %v", all, err)
	}
	publish(t, b, event("O-1", 1))
	const day = 24 * time.Hour
	if k := kept(); k.Age != 8*day { // a segment is written to for a day
		t.Errorf("a topic as we make it: %+v", k)
	}
	alter(t, b, "segment.ms", "604800000")
	alter(t, b, "retention.ms", "2592000000")
	if k := kept("order", "payment"); k.Age != 37*day || k.Setting != "retention.ms 2592000000 and segment.ms 604800000" {
		t.Errorf("thirty days: %+v", k)
	}
	alter(t, b, "retention.ms", "-1")
	if k := kept("order"); k.Age != 0 || k.Setting != "retention.ms -1" {
		t.Errorf("without limit: %+v", k)
	}
	alter(t, b, "retention.ms", "9223372036854775807")
	if k := kept("order"); k.Age != 0 {
		t.Errorf("longer than can be said: %+v", k)
	}
	alter(t, b, "retention.ms", "1000")
	alter(t, b, "cleanup.policy", "compact")
	if k := kept("order"); k.Age != 0 || k.Setting != "cleanup.policy compact" {
		t.Errorf("the last event of each key, without limit: %+v", k)
	}
}

// The room that is told is enough: an event of that size, with its headers, is taken, however small the topic.
func TestAnEventThatFillsTheRoomIsTaken(t *testing.T) {
	b := open(t, settings(testserver.Shared(t, &servers, "kafka", testserver.OpenKafka).Addr))
	publish(t, b, event("O-1", 1))
	room, err := b.Room(t.Context(), []string{"order"})
	if err != nil || room.Payload < convergo.MaxPayloadBytes || !strings.HasPrefix(room.Setting, "max_message (Config.MaxMessage) ") {
		t.Errorf("%+v, %v", room, err)
	}
	alter(t, b, "max.message.bytes", "20000")
	room, err = b.Room(t.Context(), []string{"order"})
	if err != nil || room.Setting != "max.message.bytes 20000 of topic "+b.topicName("order") || room.Payload > 20_000 || room.Payload < 15_000 {
		t.Fatalf("%+v, %v", room, err)
	}
	b.doubt("order")
	e := event(strings.Repeat("o", convergo.MaxKeyBytes), 1)
	e.Key, e.MessageID = convergo.Key(strings.Repeat("k", convergo.MaxKeyBytes)), strings.Repeat("m", convergo.MaxKeyBytes)
	e.Type, e.Origin = strings.Repeat("T", convergo.MaxNameBytes), strings.Repeat("p", convergo.MaxNameBytes)
	e.Payload = make([]byte, room.Payload)
	publish(t, b, e)
}
