package rocketmq

import (
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
)

func TestWhatABrokerKeepsAndTakesIsSeen(t *testing.T) {
	b := open(t, configOf(shared(t), prefix()))
	all, err := b.Keeps(t.Context(), nil)
	if err != nil || len(all) != 1 || all[0].Age != (72+24)*time.Hour || !strings.HasPrefix(all[0].Where, "broker ") {
		t.Errorf("%+v, %v", all, err)
	}
	room, err := b.Room(t.Context(), nil)
	if err != nil || !strings.HasPrefix(room.Setting, "maxMessageSize 4194304 of broker ") || room.Payload < 7*convergo.MaxPayloadBytes {
		t.Errorf("%+v, %v", room, err)
	}
}
