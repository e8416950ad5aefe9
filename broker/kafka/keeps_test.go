package kafka

import (
	"fmt"
	"slices"
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
	// A setting that was just changed is seen a moment later.
	kept := func(age time.Duration, setting string, topics ...string) {
		t.Helper()
		var all []relay.Kept
		within(t, func() (err error) {
			if all, err = b.Keeps(t.Context(), topics); err == nil && !slices.Equal(all, []relay.Kept{{Where: "topic " + b.topicName("order"), Setting: setting, Age: age}}) {
				err = fmt.Errorf("%+v, want %v by %s", all, age, setting)
			}
			return err
		})
	}
	if _, err := b.Missing(t.Context(), []string{"order"}, nil); err != nil { // which asks for it
		t.Fatal(err)
	}
	if all, err := b.Keeps(t.Context(), []string{"order"}); err != nil || len(all) != 0 {
		t.Errorf("a topic that is not there: %+v, %v", all, err)
	}
	publish(t, b, event("O-1", 1))
	const day = 24 * time.Hour
	kept(8*day, "retention.ms 604800000 and segment.ms 86400000") // as we make it: a segment is written to for a day
	alter(t, b, "segment.ms", "604800000")
	alter(t, b, "retention.ms", "2592000000")
	kept(37*day, "retention.ms 2592000000 and segment.ms 604800000", "order", "payment")
	alter(t, b, "retention.ms", "-1")
	kept(0, "retention.ms -1", "order")
	alter(t, b, "retention.ms", "9223372036854775807")
	kept(0, "retention.ms 9223372036854775807 and segment.ms 604800000")
	alter(t, b, "retention.ms", "1000")
	kept(7*day+time.Second, "retention.ms 1000 and segment.ms 604800000")
	alter(t, b, "cleanup.policy", "compact") // the last event of each key stays
	kept(0, "cleanup.policy compact")
}

// within waits until do finds nothing wrong any more.
func within(t *testing.T, do func() error) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		err := do()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatal(err)
		case <-poll.C:
		}
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
	within(t, func() error {
		room, err = b.Room(t.Context(), []string{"order"})
		if err == nil && (room.Setting != "max.message.bytes 20000 of topic "+b.topicName("order") || room.Payload > 20_000 || room.Payload < 15_000) {
			err = fmt.Errorf("%+v", room)
		}
		return err
	})
	b.doubt("order")
	e := event(strings.Repeat("o", convergo.MaxKeyBytes), 1)
	e.Key, e.MessageID = convergo.Key(strings.Repeat("k", convergo.MaxKeyBytes)), strings.Repeat("m", convergo.MaxKeyBytes)
	e.Type, e.Origin = strings.Repeat("T", convergo.MaxNameBytes), strings.Repeat("p", convergo.MaxNameBytes)
	e.Payload = make([]byte, room.Payload)
	publish(t, b, e)
}
