package webhook

import (
	"context"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/brokertest"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/memory"
	"github.com/convergo/convergo/store/sqlite"
)

func TestMain(m *testing.M) {
	brokertest.Child(process())
	os.Exit(m.Run())
}

// process is a subscriber's process of its own: place is its address and the secret.
func process() brokertest.Process {
	return brokertest.Process{
		Broker: func(ctx context.Context, place string) (brokertest.Broker, error) {
			address, text, _ := strings.Cut(place, " ")
			secret, err := ParseSecret(text)
			if err != nil {
				return nil, err
			}
			r, err := NewReceiver(ReceiverConfig{Secrets: []Secret{secret}})
			if err != nil {
				return nil, err
			}
			listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
			if err != nil {
				return nil, err
			}
			server := &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
			go func() { _ = server.Serve(listener) }()
			return listening{Receiver: r, server: server}, nil
		},
		Database: func(ctx context.Context, file string) (brokertest.Database, error) {
			return sqlite.Open(ctx, file, sqlite.Options{Relaxed: true})
		},
	}
}

// listening is the subscriber's end: it gets what is posted to its address, and publishes nothing.
type listening struct {
	*Receiver
	server *http.Server
}

func (l listening) Publish(_ context.Context, events []convergo.Event) []error {
	errs := make([]error, len(events))
	for i := range errs {
		errs[i] = errors.New("a subscriber publishes nothing")
	}
	return errs
}

func (l listening) Subscribe(context.Context, string, []convergo.Subject) (inbox.Source, error) {
	return l, nil
}

func (l listening) Close() error { return errors.Join(l.Receiver.Close(), l.server.Close()) }

// sender is the publisher's end: what it publishes is in an outbox, and a relay posts it, whether anybody listens or not.
type sender struct {
	t   *testing.T
	box *outbox.Outbox[*memory.Tx]
	db  *memory.Store
}

func (s sender) Publish(ctx context.Context, events []convergo.Event) []error {
	err := s.db.Update(ctx, func(ctx context.Context, tx *memory.Tx) error { return s.box.Add(ctx, tx, events...) })
	errs := make([]error, len(events))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// Subscribe has nothing to do: whoever listens at the endpoint's address is the subscriber.
func (s sender) Subscribe(context.Context, string, []convergo.Subject) (inbox.Source, error) {
	return NewReceiver(ReceiverConfig{Secrets: []Secret{{key: strings.Repeat("n", 32)}}})
}

// newSender runs a relay to a subscriber at an address of its own.
func newSender(t *testing.T) (s sender, place string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := listener.Addr().String()
	must(t, listener.Close())
	secret, text := key(t, "a")
	shop := Endpoint{Name: "shop", URL: "http://" + address + "/hook", Secrets: []Secret{secret}}
	b := open(t, Config{Endpoints: []Endpoint{shop}, Closed: convergo.Backoff{Base: 20 * time.Millisecond, Cap: 50 * time.Millisecond}})
	s = sender{t: t, db: memory.New()}
	s.box = outbox.New(s.db, outbox.Config{})
	ctx, stop := context.WithCancel(t.Context())
	r := relay.New(s.db, b, relay.Config{Poll: 20 * time.Millisecond, Outage: convergo.Backoff{Base: 20 * time.Millisecond, Cap: 100 * time.Millisecond}})
	s.db.OnEvents(r.Wake)
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	return s, address + " " + text
}

func TestAMessageThatKillsItsProcessIsADeadLetterAndTheOthersAreAppliedOnce(t *testing.T) {
	s, place := newSender(t)
	brokertest.Poison(t, brokertest.Backend{Broker: s}, process(), place, nil)
}

func TestAnEventThatIsNotSettledSaysHowOftenItCame(t *testing.T) {
	secret, _ := key(t, "a")
	other, _ := key(t, "b")
	const dies, well = 0, 200
	var mu sync.Mutex
	status, now := dies, time.Now()
	var told, byOthers []int
	var header []string
	b := two(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		told, byOthers = append(told, attemptOf(r.Header, []Secret{other, secret})), append(byOthers, attemptOf(r.Header, []Secret{other}))
		header = append(header, r.Header.Get(HeaderAttempt))
		if status == dies {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status)
	}, func(http.ResponseWriter, *http.Request) {}, Config{Now: func() time.Time { mu.Lock(); defer mu.Unlock(); return now }})
	// 500 comes from a process that lives.
	for _, answer := range []int{dies, dies, 502, 503, 504, dies, 500, 500, well, well} {
		mu.Lock()
		status, now = answer, now.Add(time.Hour)
		mu.Unlock()
		_ = b.Publish(t.Context(), []convergo.Event{paid("A", 1)})
	}
	mu.Lock()
	defer mu.Unlock()
	want := []int{0, 2, 3, 4, 5, 6, 7, 0, 0, 0}
	if !slices.Equal(told, want) || header[0] != "" {
		t.Errorf("told %v, want %v; the first %q", told, want, header[0])
	}
	if !slices.Equal(byOthers, make([]int, len(want))) {
		t.Errorf("who has another secret believes %v", byOthers)
	}
}

// A request that nobody got says nothing about the event.
func TestAnEndpointThatCannotBeReachedCountsNothing(t *testing.T) {
	secret, _ := key(t, "a")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, listener.Close())
	now := time.Now()
	b := open(t, Config{
		Endpoints: []Endpoint{{Name: "shop", URL: "http://" + listener.Addr().String(), Secrets: []Secret{secret}}},
		Now:       func() time.Time { return now },
	})
	for range 5 {
		now = now.Add(time.Hour)
		if err := b.Publish(t.Context(), []convergo.Event{paid("A", 1)})[0]; err == nil {
			t.Fatal("sent to nobody")
		}
	}
	if n, found := b.unsettled.of(paid("A", 1), "shop"); found {
		t.Errorf("counted %d", n)
	}
}

// A number that nobody signed, or that was signed for another message, or is malformed, is as good as none: the message is delivered.
func TestANumberThatIsNotSignedIsNotBelievedAndTheMessageIsDelivered(t *testing.T) {
	secret, text := key(t, "a")
	r, err := NewReceiver(ReceiverConfig{Secrets: []Secret{secret}})
	must(t, err)
	e := paid("O-1", 1)
	of := func(e convergo.Event) string {
		h := http.Header{}
		sign(h, e, time.Now(), []Secret{secret}, 99)
		return h.Get(HeaderAttempt)
	}
	_, signature, _ := strings.Cut(of(e), " ")
	oracle, err := standardwebhooks.NewWebhook(text)
	must(t, err)
	for name, change := range map[string]func(http.Header){
		"none":              func(h http.Header) { h.Del(HeaderAttempt) },
		"bare":              func(h http.Header) { h.Set(HeaderAttempt, "99") },
		"raised":            func(h http.Header) { h.Set(HeaderAttempt, "999 "+signature) },
		"another message's": func(h http.Header) { h.Set(HeaderAttempt, of(paid("O-2", 1))) },
		"twice":             func(h http.Header) { h.Add(HeaderAttempt, h.Get(HeaderAttempt)) },
		"no number":         func(h http.Header) { h.Set(HeaderAttempt, "many "+signature) },
		"with a sign":       func(h http.Header) { h.Set(HeaderAttempt, "+99 "+signature) },
		"signed with no key": func(h http.Header) {
			h.Set(HeaderAttempt, "99 v1,"+base64.StdEncoding.EncodeToString(make([]byte, 32)))
		},
		"of the body's own kind": func(h http.Header) { h.Set(HeaderAttempt, "99 "+h.Get(HeaderSignature)) },
	} {
		for _, honest := range []bool{true, false} {
			q := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(string(e.Payload)))
			sign(q.Header, e, time.Now(), []Secret{secret}, 99)
			want := 99
			if !honest {
				change(q.Header)
				want = 0
			}
			if err := oracle.Verify(e.Payload, q.Header); err != nil {
				t.Errorf("%s: the library of the specification: %v", name, err)
			}
			w := httptest.NewRecorder()
			var serving sync.WaitGroup
			serving.Go(func() { r.ServeHTTP(w, q) })
			got, err := r.Fetch(t.Context(), 1)
			must(t, err)
			if got[0].Attempt != want || got[0].Malformed != nil || len(got[0].Event.Headers) != 0 {
				t.Errorf("%s: delivery %+v, want attempt %d", name, got[0], want)
			}
			must(t, got[0].Ack(t.Context()))
			serving.Wait()
			if w.Code != http.StatusNoContent {
				t.Errorf("%s: answered %d", name, w.Code)
			}
		}
	}
}
