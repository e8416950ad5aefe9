package webhook

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

// pair is a broker and the receiver that it posts to.
func pair(t *testing.T, cfg ReceiverConfig) (*Broker, *Receiver) {
	t.Helper()
	secret, _ := key(t, "a")
	old, _ := key(t, "b")
	cfg.Secrets = []Secret{old, secret}
	r, err := NewReceiver(cfg)
	must(t, err)
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	t.Cleanup(func() { _ = r.Close() })
	return open(t, Config{Endpoints: []Endpoint{{Name: "shop", URL: server.URL, Secrets: []Secret{secret}}}}), r
}

func fetchOne(t *testing.T, r *Receiver) inbox.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	got, err := r.Fetch(ctx, 1)
	must(t, err)
	return got[0]
}

func TestCaseB25APostIsAnsweredOnlyAfterItsDeliveryWasAcknowledged(t *testing.T) {
	b, r := pair(t, ReceiverConfig{})
	e := paid("O-1", 1)
	e.Headers = map[string]string{"Content-Type": "text/plain", "content-type": "x", "Note": "  é & = %  "}
	sent := make(chan error, 1)
	go func() { sent <- b.Publish(context.Background(), []convergo.Event{e})[0] }()
	d := fetchOne(t, r)
	select {
	case err := <-sent:
		t.Fatalf("confirmed before it was handled: %v", err)
	default:
	}
	if d.Malformed != nil || d.Event.Key != e.Key ||
		string(d.Event.Payload) != string(e.Payload) || d.Event.Headers["Note"] != e.Headers["Note"] {
		t.Errorf("got %+v, %v", d.Event, d.Malformed)
	}
	must(t, d.Ack(t.Context()))
	must(t, <-sent)
}

func TestAReturnedDeliveryTellsTheSenderWhenToComeAgain(t *testing.T) {
	b, r := pair(t, ReceiverConfig{})
	sent := make(chan error, 1)
	go func() { sent <- b.Publish(context.Background(), []convergo.Event{paid("O-1", 1)})[0] }()
	before := time.Now()
	must(t, fetchOne(t, r).Return(t.Context(), 1500*time.Millisecond))
	err := <-sent
	earliest, latest, until := before.Add(2*time.Second), time.Now().Add(2*time.Second), b.endpoints[0].until
	if convergo.VerdictOf(err) != convergo.Outage || until.Before(earliest) || until.After(latest) {
		t.Errorf("error %v, left alone until %v, want 2 s", err, until)
	}
}

func TestAReceiverWithoutRoomOrTimeAnswersNotNowAndHandlesNothingTwice(t *testing.T) {
	b, r := pair(t, ReceiverConfig{Room: 1, Timeout: 100 * time.Millisecond})
	errs := b.Publish(t.Context(), []convergo.Event{paid("A", 1), paid("B", 1), paid("C", 1)})
	for _, err := range errs {
		if err == nil {
			t.Error("confirmed although nobody handled it")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if got, _ := r.Fetch(ctx, 10); len(got) > 0 {
		t.Errorf("%d deliveries whose senders have gone", len(got))
	}
}

func TestAReceiverRefusesWhatIsNotASignedPost(t *testing.T) {
	_, r := pair(t, ReceiverConfig{})
	stranger, _ := key(t, "z")
	for want, request := range map[int]func() *http.Request{
		http.StatusMethodNotAllowed: func() *http.Request { return httptest.NewRequest(http.MethodGet, "/", nil) },
		http.StatusBadRequest:       func() *http.Request { return httptest.NewRequest(http.MethodPost, "/", nil) },
		http.StatusUnauthorized: func() *http.Request {
			q := httptest.NewRequest(http.MethodPost, "/", http.NoBody)
			e := paid("O-1", 1)
			e.Payload = nil
			sign(q.Header, e, time.Now(), []Secret{stranger}, 1)
			return q
		},
	} {
		w := httptest.NewRecorder()
		r.ServeHTTP(w, request())
		if w.Code != want {
			t.Errorf("answered %d, want %d", w.Code, want)
		}
	}
}

func TestAnOldRequestIsRefused(t *testing.T) {
	secret, _ := key(t, "a")
	e := paid("O-1", 1)
	h := http.Header{}
	now := time.Now()
	sign(h, e, now, []Secret{secret}, 1)
	for offset, ok := range map[time.Duration]bool{
		4 * time.Minute: true, -4 * time.Minute: true, 6 * time.Minute: false, -6 * time.Minute: false,
	} {
		if err := verify(h, e.Payload, now.Add(offset), []Secret{secret}); (err == nil) != ok {
			t.Errorf("%v later: %v", offset, err)
		}
	}
}

func TestASignedMessageOfAnotherProgramIsDeliveredAsMalformed(t *testing.T) {
	_, r := pair(t, ReceiverConfig{})
	secret, _ := key(t, "a")
	q := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("hello"))
	e := paid("O-1", 1)
	e.Payload = []byte("hello")
	sign(q.Header, e, time.Now(), []Secret{secret}, 1)
	q.Header.Del(HeaderEvent)
	q.Header.Del(HeaderEventSignature)
	w := httptest.NewRecorder()
	ended := make(chan struct{})
	go func() { defer close(ended); r.ServeHTTP(w, q) }()
	d := fetchOne(t, r)
	if d.Malformed == nil || string(d.Event.Payload) != "hello" {
		t.Errorf("got %+v, %v", d.Event, d.Malformed)
	}
	must(t, d.Ack(t.Context()))
	<-ended
	if w.Code != http.StatusNoContent {
		t.Errorf("answered %d", w.Code)
	}
}

// endless is a body that never ends; it tells how much of it was read.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) { e.read += len(p); return len(p), nil }
func (e *endless) Close() error               { return nil }

// What a stranger costs before his signature is looked at.
func TestAReceiverReadsNoMoreThanItMustBeforeTheSignatureFits(t *testing.T) {
	_, r := pair(t, ReceiverConfig{Room: 2, Timeout: 200 * time.Millisecond})
	stranger, _ := key(t, "z")
	post := func(body *endless, h http.Header) *httptest.ResponseRecorder {
		q := httptest.NewRequest(http.MethodPost, "/", body)
		for name, values := range h {
			q.Header[name] = values
		}
		w := httptest.NewRecorder()
		r.ServeHTTP(w, q)
		return w
	}
	signed := http.Header{}
	sign(signed, paid("O-1", 1), time.Now(), []Secret{stranger}, 1)
	for _, missing := range []string{HeaderID, HeaderTimestamp, HeaderSignature} {
		h, body := signed.Clone(), &endless{}
		h.Del(missing)
		if w := post(body, h); w.Code != http.StatusBadRequest || body.read > 0 {
			t.Errorf("without %s: %d after %d bytes", missing, w.Code, body.read)
		}
	}
	body := &endless{}
	if w := post(body, signed); w.Code != http.StatusRequestEntityTooLarge || body.read > 2*convergo.MaxPayloadBytes {
		t.Errorf("a body without an end: %d after %d bytes", w.Code, body.read)
	}
	// Bodies that do not arrive have two places and are not waited for longer than the time-out.
	server := httptest.NewServer(r)
	defer server.Close()
	slow := func() *http.Response {
		reader, writer := io.Pipe()
		t.Cleanup(func() { _ = writer.Close() })
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, reader)
		must(t, err)
		q.Header = signed.Clone()
		answer, err := http.DefaultClient.Do(q)
		must(t, err)
		_ = answer.Body.Close()
		return answer
	}
	codes := make(chan int, 3)
	for range cap(codes) {
		go func() { codes <- slow().StatusCode }()
	}
	got := []int{<-codes, <-codes, <-codes}
	slices.Sort(got)
	if !slices.Equal(got, []int{http.StatusBadRequest, http.StatusBadRequest, http.StatusServiceUnavailable}) {
		t.Errorf("three slow bodies, room for two: %v", got)
	}
}
