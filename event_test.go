package convergo

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
)

func valid() Event {
	return Event{
		MessageID: "01936f2e-7c00-7000-8000-000000000001", Key: "OrderPaid:O-1:v2", Type: "OrderPaid", Topic: "order",
		Aggregate: Aggregate{"order", "O-1"}, Version: 2, Payload: []byte(`{"no":"O-1"}`), Headers: map[string]string{"Trace": "abc"},
		CreatedAt: time.UnixMicro(1_795_000_000_123_456).UTC(),
	}
}

func TestAnEventAtItsLimitsIsValid(t *testing.T) {
	for name, change := range map[string]func(*Event){
		"as it is":                   func(*Event) {},
		"key of 255 bytes":           func(e *Event) { e.Key = Key(strings.Repeat("é", 127) + "x") },
		"key with an inner blank":    func(e *Event) { e.Key = "a b" },
		"key of emoji with a joiner": func(e *Event) { e.Key = "👩‍🚀" },
		"type of 100 bytes":          func(e *Event) { e.Type = strings.Repeat("x", 100) },
		"aggregate id of 255 bytes":  func(e *Event) { e.Aggregate.ID = strings.Repeat("x", 255) },
		"no payload":                 func(e *Event) { e.Payload = nil },
		"payload of 512 KiB":         func(e *Event) { e.Payload = make([]byte, 512<<10) },
		"payload that is no text":    func(e *Event) { e.Payload = []byte{0, 255, 254} },
		"no headers":                 func(e *Event) { e.Headers = nil },
		"64 headers":                 func(e *Event) { e.Headers = headers(64, "v") },
		"headers of 16 KiB":          func(e *Event) { e.Headers = map[string]string{"H": strings.Repeat("v", 16<<10-1)} },
		"version 0":                  func(e *Event) { e.Version = 0 },
	} {
		e := valid()
		change(&e)
		if err := e.Validate(); err != nil {
			t.Errorf("%s: %v, want valid", name, err)
		}
	}
}

func TestAnEventBeyondALimitIsRefusedWithTheFieldAndTheLimit(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Event)
		says   []string
	}{
		{"empty key", func(e *Event) { e.Key = "" }, []string{"event key", "is empty"}},
		{"key too long", func(e *Event) { e.Key = Key(strings.Repeat("x", 256)) }, []string{"event key", "256 > 255 bytes"}},
		{"key not UTF-8", func(e *Event) { e.Key = "a\xff" }, []string{"event key", "is not UTF-8"}},
		{"key with a trailing blank", func(e *Event) { e.Key = "O-55:paid " }, []string{"event key", "blanks"}},
		{"key with a leading ideographic blank", func(e *Event) { e.Key = "\u3000O-55" }, []string{"event key", "blanks"}},
		{"key with a control", func(e *Event) { e.Key = "a\x00b" }, []string{"event key", "control characters"}},
		{"key with a line break", func(e *Event) { e.Key = "a\nb" }, []string{"event key", "control characters"}},
		{"empty type", func(e *Event) { e.Type = "" }, []string{"OrderPaid:O-1:v2", "type", "is empty"}},
		{"type too long", func(e *Event) { e.Type = strings.Repeat("x", 101) }, []string{"type", "101 > 100 bytes"}},
		{"type with a dot", func(e *Event) { e.Type = "Order.Paid" }, []string{"type", "Order.Paid", "A-Z a-z 0-9 _ -"}},
		{"topic with a wildcard", func(e *Event) { e.Topic = "order*" }, []string{"topic", "order*"}},
		{"aggregate type with a slash", func(e *Event) { e.Aggregate.Type = "a/b" }, []string{"aggregate type", "a/b"}},
		{"empty aggregate id", func(e *Event) { e.Aggregate.ID = "" }, []string{"aggregate id", "is empty"}},
		{"aggregate id too long", func(e *Event) { e.Aggregate.ID = strings.Repeat("x", 256) }, []string{"aggregate id", "256 > 255"}},
		{"empty message id", func(e *Event) { e.MessageID = "" }, []string{"message id", "is empty"}},
		{"payload too long", func(e *Event) { e.Payload = make([]byte, 512<<10+1) }, []string{"payload", "524289 > 524288 bytes"}},
		{"negative version", func(e *Event) { e.Version = -1 }, []string{"version -1"}},
		{"negative attempts", func(e *Event) { e.MaxAttempts = -1 }, []string{"maximum attempts -1"}},
		{"65 headers", func(e *Event) { e.Headers = headers(65, "v") }, []string{"headers", "65 > 64"}},
		{"headers too long", func(e *Event) { e.Headers = headers(1, strings.Repeat("v", 16<<10)) }, []string{"16387 > 16384 bytes"}},
		{"header name with a colon", func(e *Event) { e.Headers = map[string]string{"a:b": ""} }, []string{"header", "a:b"}},
		{"header value with a line break", func(e *Event) { e.Headers = map[string]string{"A": "x\r\nB: y"} }, []string{"header", "control"}},
		{"header with our name", func(e *Event) { e.Headers = map[string]string{"convergo-key": "x"} }, []string{"convergo-key", "reserved"}},
		{"header with the origin's name", func(e *Event) { e.Headers = map[string]string{"Convergo-Origin": "x"} }, []string{"Convergo-Origin", "reserved"}},
		{"origin", func(e *Event) { e.Origin = "two words" }, []string{"origin", "two words"}},
	} {
		e := valid()
		c.change(&e)
		err := e.Validate()
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want an error that wraps ErrInvalid", c.name, err)
			continue
		}
		for _, want := range c.says {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error %q does not say %q", c.name, err, want)
			}
		}
		if len(err.Error()) > 500 {
			t.Errorf("%s: the error has %d bytes; it repeats what is too long", c.name, len(err.Error()))
		}
	}
}

func headers(n int, value string) map[string]string {
	h := map[string]string{}
	for i := range n {
		h[fmt.Sprint("H-", i)] = value
	}
	return h
}

// The values were computed with another program (printf 'type/id' | sha256sum), as a service in another language would.
func TestTheLaneOfAnAggregateNeverChanges(t *testing.T) {
	for _, c := range []struct {
		aggregate Aggregate
		digest    string
		lane      Lane
	}{
		{Aggregate{"order", "O-1"}, "474bb1bc198faeb92cbe6fa00181f0637c1faa7c88dcc26a03aaad64160c74b9", 7},
		{Aggregate{"order", "20261129-000017"}, "1e306baad0a32a9538251ec8d38ef2b1add622ff6b09bb04afe44cd5578630a8", 30},
		{Aggregate{"product", "苹果"}, "84d310a5e5329cc39fa980c26f357cdfb2d8e18af802092f91417c49ac74b938", 4},
		{Aggregate{"user", "Ünïcode-é"}, "637bd8025568847637b39aa16e238c822fe08058d510b0794d5f04bea0657670", 35},
		{Aggregate{"payment", "4200001"}, "360465706711404012cd3fde4ea7023a90e90deaafa64e2de2e2d88df045ba75", 54},
	} {
		d := c.aggregate.Digest()
		if got := hex.EncodeToString(d[:]); got != c.digest {
			t.Errorf("%s: digest %s, want %s", c.aggregate, got, c.digest)
		}
		if got := c.aggregate.Lane(); got != c.lane {
			t.Errorf("%s: lane %d, want %d", c.aggregate, got, c.lane)
		}
	}
	if Lanes != 64 || 256%Lanes != 0 {
		t.Errorf("there are %d lanes: rows of every database carry lanes of 64", Lanes)
	}
}

func TestLanesAreUsedEvenly(t *testing.T) {
	var count [Lanes]int
	const each = 200
	for i := range each * Lanes {
		count[Aggregate{"order", fmt.Sprintf("20261129-%06d", i)}.Lane()]++
	}
	for lane, n := range count {
		if n < each/2 || n > each*2 {
			t.Errorf("lane %d has %d of %d aggregates, want about %d", lane, n, each*Lanes, each)
		}
	}
}

func TestAKeysDigestIsOfItsBytes(t *testing.T) {
	d := Key("OrderPaid:O-1:v2").Digest()
	if got, want := hex.EncodeToString(d[:]), "5797b4aef65bf69e929da1ce5eaddc7aca2fec700c5ec2824eea7770384603a0"; got != want {
		t.Errorf("digest %s, want %s", got, want)
	}
	for _, pair := range [][2]Key{{"o-1", "O-1"}, {"e\u0301", "é"}, {"resume", "résumé"}, {"🍎", "🍏"}, {"a", "a\u200b"}} {
		if pair[0].Digest() == pair[1].Digest() {
			t.Errorf("%q and %q are one key", pair[0], pair[1])
		}
	}
	if got := KeyFor("OrderPaid", "O-1", 2); got != "OrderPaid:O-1:v2" {
		t.Errorf("the default key is %s", got)
	}
}

func TestMicrosKeepsMicrosecondsAndTheZeroTime(t *testing.T) {
	if got := Micros(time.Time{}); got != 0 {
		t.Errorf("Micros of the zero time is %d", got)
	}
	if got := FromMicros(0); !got.IsZero() {
		t.Errorf("FromMicros(0) is %v", got)
	}
	at := time.Date(2026, 11, 29, 18, 45, 36, 123_456_789, time.FixedZone("CST", 8*3600))
	if got, want := Micros(at), int64(1_795_949_136_123_456); got != want {
		t.Errorf("Micros is %d, want %d", got, want)
	}
	back := FromMicros(Micros(at))
	if !back.Equal(at.Truncate(time.Microsecond)) || back.Location() != time.UTC {
		t.Errorf("it came back as %v, want %v in UTC", back, at)
	}
	if got := FromMicros(-1); Micros(got) != -1 {
		t.Errorf("a time before 1970 came back as %d µs", Micros(got))
	}
}

func TestAnEventComesOffTheWireAsItWentOn(t *testing.T) {
	e := valid()
	if _, there := e.Wire()[HeaderOrigin]; there {
		t.Error("an event of nowhere has an origin on the wire")
	}
	e.Origin = "north"
	got, err := FromWire(e.Wire(), e.Payload)
	if err != nil {
		t.Fatal(err)
	}
	if !same(got, e) {
		t.Errorf("came back as %+v, want %+v", got, e)
	}
	if len(e.Headers) != 1 {
		t.Errorf("Wire changed the event's own headers: %v", e.Headers)
	}
}

func TestAMessageThatIsNoEventIsReadAsFarAsPossible(t *testing.T) {
	h := valid().Wire()
	h[HeaderVersion] = "two"
	e, err := FromWire(h, []byte("x"))
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), HeaderVersion) {
		t.Errorf("%v, want an error that names %s", err, HeaderVersion)
	}
	if e.Key != "OrderPaid:O-1:v2" || e.Headers["Trace"] != "abc" || string(e.Payload) != "x" {
		t.Errorf("read as %+v, want all but the version", e)
	}
	if _, err := FromWire(nil, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("a message without headers: %v", err)
	}
}

// same compares what travels: DeliverAt and MaxAttempts stay in the outbox.
func same(a, b Event) bool {
	return a.Key == b.Key && a.MessageID == b.MessageID && a.Type == b.Type && a.Topic == b.Topic && a.Aggregate == b.Aggregate &&
		a.Version == b.Version && a.Origin == b.Origin && string(a.Payload) == string(b.Payload) &&
		maps.Equal(a.Headers, b.Headers) && a.CreatedAt.Equal(b.CreatedAt)
}

func FuzzAnEventComesOffTheWireAsItWentOn(f *testing.F) {
	f.Add("OrderPaid:O-1:v2", "m-1", "OrderPaid", "order", "order", "O-1", int64(2), []byte("{}"), "Trace", "abc", int64(1))
	f.Add("🍎", "m", "T", "t", "a", "苹果", int64(0), []byte{0, 255}, "Convergo-Key", "x", int64(0))
	f.Fuzz(func(
		t *testing.T, key, id, kind, topic, aggregate, aggregateID string, version int64, payload []byte, name, value string, at int64,
	) {
		e := Event{
			Key: Key(key), MessageID: id, Type: kind, Topic: topic, Aggregate: Aggregate{aggregate, aggregateID}, Version: version,
			Payload: payload, Headers: map[string]string{name: value}, CreatedAt: FromMicros(at),
		}
		if e.Validate() != nil {
			return
		}
		got, err := FromWire(e.Wire(), payload)
		if err != nil {
			t.Fatalf("%+v: %v", e, err)
		}
		if !same(got, e) {
			t.Errorf("%+v came back as %+v", e, got)
		}
	})
}

func FuzzAnythingFromTheWireIsReadWithoutAPanic(f *testing.F) {
	f.Add(HeaderKey, "k", HeaderVersion, "1", []byte(nil))
	f.Fuzz(func(t *testing.T, a, b, c, d string, payload []byte) {
		e, err := FromWire(map[string]string{a: b, c: d, HeaderCreatedAt: b, HeaderVersion: d}, payload)
		if err == nil && e.Validate() != nil {
			t.Errorf("%+v was accepted and is not valid", e)
		}
		if err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%v does not wrap ErrInvalid", err)
		}
	})
}
