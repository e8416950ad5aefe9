package brokertest

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/convergo/convergo"
)

func contentLaws() []law {
	return []law{
		{"CaseB39AnEventComesOutAsItWentIn", nil, unchanged},
		{"TheLargestEventGoesThrough", nil, largest},
		{"AMalformedMessageIsDeliveredAsSuch", func(b Backend) bool { return b.PublishRaw != nil }, malformed},
	}
}

func unchanged(t *testing.T, b Backend) {
	s := subscribe(t, b.Broker, "payment")
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	signed := []byte(`{"order":"O-77","note":"Tom & Jerry <gift>","z":1,"a":2}`)
	var events []convergo.Event
	for i, payload := range [][]byte{signed, []byte("👩‍👩‍👧 zwölf"), {}, nil, all, []byte("\r\n\r\n"), []byte("+ACK")} {
		e := paid(fmt.Sprint("O-", i), 1)
		e.Payload = payload
		events = append(events, e)
	}
	events[0].Headers = map[string]string{"Content-Type": "application/json", "content-type": "text/plain", "X": ""}
	events[1].Headers = map[string]string{"Note": "naïve 👩‍👩‍👧", "Blank": "  both ends  ", "Quoted": `json:"x"`, "Colon": "a: b"}
	events[2].Headers = map[string]string{"Nats-Msg-Id": "mine", "Nats-Expected-Stream": "other", "Status": "503", "Convergo-Escaped-Nats-Rollup": "all"}
	events[3].Key, events[3].Aggregate.ID = "订单已支付:O-3:👍", "O 3 / é"
	events[4].Origin = "north-1"
	publish(t, b.Broker, events...)
	got := fetch(t, s, len(events))
	for _, want := range events {
		found := false
		for _, d := range got {
			if d.Event.Key != want.Key {
				continue
			}
			found = true
			if d.Malformed != nil {
				t.Errorf("%s is malformed: %v", want.Key, d.Malformed)
			}
			sameEvent(t, d.Event, want)
		}
		if !found {
			t.Errorf("%s did not arrive", want.Key)
		}
	}
	mac := hmac.New(sha256.New, []byte("demo-secret-1"))
	for _, d := range got {
		if d.Event.Key == events[0].Key {
			mac.Write(d.Event.Payload)
		}
	}
	if sum := hex.EncodeToString(mac.Sum(nil)); sum != "832409db374dea62305e2f4aa9321bd6f31591de8991680d590b7ee62f4172e7" {
		t.Errorf("the signature of the payload is %s", sum)
	}
}

func sameEvent(t *testing.T, got, want convergo.Event) {
	t.Helper()
	if !bytes.Equal(got.Payload, want.Payload) {
		t.Errorf("%s: payload %q, want %q", want.Key, got.Payload, want.Payload)
	}
	if !maps.Equal(got.Headers, want.Headers) {
		t.Errorf("%s: headers %q, want %q", want.Key, got.Headers, want.Headers)
	}
	if got.Key != want.Key || got.MessageID != want.MessageID || got.Type != want.Type || got.Topic != want.Topic ||
		got.Aggregate != want.Aggregate || got.Version != want.Version || got.Origin != want.Origin || !got.CreatedAt.Equal(want.CreatedAt) {
		t.Errorf("%s: got %+v\nwant %+v", want.Key, got, want)
	}
}

func largest(t *testing.T, b Backend) {
	s := subscribe(t, b.Broker, "payment")
	e := paid(strings.Repeat("o", convergo.MaxKeyBytes), 1)
	e.Key = convergo.Key(strings.Repeat("k", convergo.MaxKeyBytes))
	e.MessageID = strings.Repeat("m", convergo.MaxKeyBytes)
	e.Origin = strings.Repeat("o", convergo.MaxNameBytes)
	e.Payload = bytes.Repeat([]byte{0xff}, b.Guarantees.MaxPayload)
	e.Headers = map[string]string{}
	for i := range convergo.MaxHeaders {
		name := fmt.Sprintf("Header-%02d", i)
		e.Headers[name] = strings.Repeat(`"`, convergo.MaxHeaderBytes/convergo.MaxHeaders-len(name))
	}
	if err := e.Validate(); err != nil {
		t.Fatal(err)
	}
	publish(t, b.Broker, e, e)
	sameEvent(t, fetch(t, s, 1)[0].Event, e)
}

func malformed(t *testing.T, b Backend) {
	s := subscribe(t, b.Broker, "payment")
	whole := paid("O-1", 1).Wire()
	noVersion := maps.Clone(whole)
	noVersion[convergo.HeaderVersion] = "seven"
	for _, headers := range []map[string]string{noVersion, nil} {
		if err := b.PublishRaw(t.Context(), orders[0], headers, []byte("a foreign message")); err != nil {
			t.Fatal(err)
		}
	}
	publish(t, b.Broker, paid("O-2", 1))
	got := fetch(t, s, 3)
	broken := 0
	for _, d := range got {
		if d.Malformed == nil {
			continue
		}
		broken++
		if !errors.Is(d.Malformed, convergo.ErrInvalid) || string(d.Event.Payload) != "a foreign message" {
			t.Errorf("malformed: %v, payload %q", d.Malformed, d.Event.Payload)
		}
	}
	if broken != 2 {
		t.Errorf("%d malformed deliveries, want 2", broken)
	}
	ack(t, got...)
	nothing(t, s, silence)
}
