package webhook

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/brokertest"
	"github.com/convergo/convergo/broker/memory"
	"github.com/convergo/convergo/inbox"
)

func key(t testing.TB, letter string) (Secret, string) {
	t.Helper()
	text := "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat(letter, 32)))
	s, err := ParseSecret(text)
	must(t, err)
	return s, text
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

// open makes a broker whose endpoints may be on this machine.
func open(t testing.TB, cfg Config) *Broker {
	t.Helper()
	cfg.Allow, cfg.PlainHTTP = loopback, true
	b, err := Open(t.Context(), cfg)
	must(t, err)
	t.Cleanup(b.Close)
	return b
}

// serve is an HTTP server of a subscriber.
func serve(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

// subscriber stores what it receives before it answers, as a program in any language would: it checks the signature with the
// library of the specification and hands the message to its own queue.
type subscriber struct {
	*Broker
	queue *memory.Broker
}

func (s subscriber) Subscribe(ctx context.Context, consumer string, subjects []convergo.Subject) (inbox.Source, error) {
	return s.queue.Subscribe(ctx, consumer, subjects)
}

func TestWebhooksObeyTheLawsOfPublishersThroughAStoringSubscriber(t *testing.T) {
	brokertest.Run(t, func(t *testing.T) brokertest.Backend {
		secret, text := key(t, "a")
		oracle, err := standardwebhooks.NewWebhook(text)
		must(t, err)
		queue := memory.New(memory.Config{Visibility: time.Second})
		target := serve(t, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err == nil {
				err = oracle.Verify(body, r.Header)
			}
			if err != nil {
				t.Error(err)
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			wire := map[string]string{}
			fields, err := url.ParseQuery(r.Header.Get(HeaderEvent))
			if err != nil {
				t.Error(err)
			}
			for name := range fields {
				wire[name] = fields.Get(name)
			}
			queue.PublishRaw(convergo.Subject{Topic: wire[convergo.HeaderTopic], Type: wire[convergo.HeaderType]}, wire, body)
		})
		b := open(t, Config{Endpoints: []Endpoint{{Name: "shop", URL: target, Secrets: []Secret{secret}}}})
		shop := subscriber{b, queue}
		return brokertest.Backend{
			Broker: shop, Another: func(*testing.T) (brokertest.Broker, func()) { return shop, nil },
			Guarantees: brokertest.Guarantees{
				OrderedPerAggregate: true, Shares: true, KeepsHistory: true, DelaysReturns: true, Redelivers: time.Second,
			},
			Unroute: func(t *testing.T) {
				b.endpoints[0].Subjects = []convergo.Subject{{Topic: "nothing"}}
			},
		}
	})
}

func paid(id string, version int64) convergo.Event {
	key := convergo.KeyFor("OrderPaid", id, version)
	return convergo.Event{
		Key: key, MessageID: "m-" + string(key), Topic: "order", Type: "OrderPaid", Aggregate: convergo.Aggregate{Type: "order", ID: id},
		Version: version, Payload: []byte(`{"a":1}`), CreatedAt: time.UnixMicro(1_796_000_000_000_001).UTC(),
	}
}

func TestTheLibraryOfTheSpecificationAcceptsEverySecretAndNoChangedByte(t *testing.T) {
	one, oneText := key(t, "a")
	two, twoText := key(t, "b")
	_, otherText := key(t, "c")
	now := time.Now()
	for _, name := range []convergo.Key{"OrderPaid:O-1:v1", "has.points", "订单:👍", convergo.Key(strings.Repeat("k", 255))} {
		e := paid("O-1", 1)
		e.Key = name
		h := http.Header{}
		sign(h, e, now, []Secret{one, two}, 1)
		for text, want := range map[string]bool{oneText: true, twoText: true, otherText: false} {
			oracle, err := standardwebhooks.NewWebhook(text)
			must(t, err)
			if err := oracle.Verify(e.Payload, h); (err == nil) != want {
				t.Errorf("%s: %v, want accepted: %v", name, err, want)
			}
		}
		// And the other way round: what the library signs is verified here.
		oracle, err := standardwebhooks.NewWebhook(twoText)
		must(t, err)
		signature, err := oracle.Sign(h.Get(HeaderID), now, e.Payload)
		must(t, err)
		foreign := http.Header{}
		foreign.Set(HeaderID, h.Get(HeaderID))
		foreign.Set(HeaderTimestamp, strconv.FormatInt(now.Unix(), 10))
		foreign.Set(HeaderSignature, signature)
		must(t, verify(foreign, e.Payload, now, []Secret{one, two}))
		changed := append([]byte("x"), e.Payload...)
		if verify(foreign, e.Payload, now, []Secret{one}) == nil || verify(foreign, changed, now, []Secret{two}) == nil {
			t.Error("a wrong secret or a changed body is verified")
		}
	}
}

func TestAnAttemptHasANewTimestampAndTheSameID(t *testing.T) {
	secret, _ := key(t, "a")
	var ids, times []string
	target := serve(t, func(w http.ResponseWriter, r *http.Request) {
		ids, times = append(ids, r.Header.Get(HeaderID)), append(times, r.Header.Get(HeaderTimestamp))
		w.WriteHeader(http.StatusInternalServerError)
	})
	now := time.Unix(1_796_000_000, 0)
	b := open(t, Config{Endpoints: []Endpoint{{Name: "shop", URL: target, Secrets: []Secret{secret}}}, Now: func() time.Time { return now }})
	for range 2 {
		if err := b.Publish(t.Context(), []convergo.Event{paid("O-1", 1)})[0]; convergo.VerdictOf(err) != convergo.Again || err == nil {
			t.Errorf("error %v", err)
		}
		now = now.Add(time.Minute)
	}
	if fmt.Sprint(ids, times) != "[OrderPaid:O-1:v1 OrderPaid:O-1:v1] [1796000000 1796000060]" {
		t.Errorf("ids %v, timestamps %v", ids, times)
	}
}

func TestAnEventHeaderThatIsNotSignedIsRefused(t *testing.T) {
	secret, _ := key(t, "a")
	r, err := NewReceiver(ReceiverConfig{Secrets: []Secret{secret}})
	must(t, err)
	e := paid("O-1", 1)
	for name, change := range map[string]func(http.Header){
		"changed event": func(h http.Header) {
			h.Set(HeaderEvent, strings.Replace(h.Get(HeaderEvent), "O-1", "O-2", 1))
		},
		"unsigned event": func(h http.Header) { h.Del(HeaderEventSignature) },
		"changed id":     func(h http.Header) { h.Set(HeaderID, "other") },
		"second event":   func(h http.Header) { h.Add(HeaderEvent, h.Get(HeaderEvent)) },
	} {
		q := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(e.Payload))
		sign(q.Header, e, time.Now(), []Secret{secret}, 1)
		change(q.Header)
		w := httptest.NewRecorder()
		r.ServeHTTP(w, q)
		if w.Code != http.StatusUnauthorized {
			t.Errorf("%s: answered %d, want 401", name, w.Code)
		}
	}
}
