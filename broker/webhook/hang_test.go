package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/memory"
)

// hanging is an endpoint that takes requests and answers none until it is well.
type hanging struct {
	well      chan struct{}
	came      atomic.Int64
	gone      atomic.Int64 // requests that ended without an answer
	mu        sync.Mutex
	delivered []string
}

func (h *hanging) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.came.Add(1)
	_, _ = io.Copy(io.Discard, r.Body)
	select {
	case <-h.well:
		h.mu.Lock()
		defer h.mu.Unlock()
		h.delivered = append(h.delivered, r.Header.Get(HeaderID))
	case <-r.Context().Done():
		h.gone.Add(1)
	}
}

func (h *hanging) has(n int) func() bool {
	return func() bool { h.mu.Lock(); defer h.mu.Unlock(); return len(h.delivered) >= n }
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline, poll := time.NewTimer(60*time.Second), time.NewTicker(5*time.Millisecond)
	defer deadline.Stop()
	defer poll.Stop()
	for !holds() {
		select {
		case <-poll.C:
		case <-deadline.C:
			t.Fatalf("never: %s", what)
		}
	}
}

// While not one request to the endpoint that hangs has ended, all events of the other one arrive, also those that come later.
// Before it was its own affair 69 of 1,700 did in the 8 s until its time was over.
func TestAnEndpointThatHangsHoldsUpNoOther(t *testing.T) {
	bad := &hanging{well: make(chan struct{})}
	var good atomic.Int64
	b := two(t, bad.ServeHTTP, func(http.ResponseWriter, *http.Request) { good.Add(1) }, Config{Timeout: time.Hour})
	store := memory.New()
	box := outbox.New(store, outbox.Config{})
	add := func(events ...convergo.Event) {
		for i := range events {
			events[i].CreatedAt = time.Time{}
		}
		must(t, store.Update(t.Context(), func(ctx context.Context, tx *memory.Tx) error { return box.Add(ctx, tx, events...) }))
	}
	var first, all []convergo.Event
	for i := range 64 {
		first = append(first, paid(fmt.Sprint("A-", i), 1), paid(fmt.Sprint("A-", i), 2))
	}
	add(first...)
	for i := range 2000 {
		all = append(all, inStock(fmt.Sprint("B-", i), 1))
	}
	add(all[:500]...)
	ctx, stop := context.WithCancel(t.Context())
	r := relay.New(store, b, relay.Config{Poll: 20 * time.Millisecond})
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	defer func() { stop(); running.Wait() }()
	for n := 500; n < len(all); n += 500 {
		eventually(t, "the other's events", func() bool { return good.Load() >= int64(n) })
		add(all[n : n+500]...)
		r.Wake()
	}
	eventually(t, "all of the other's events", func() bool { return good.Load() >= int64(len(all)) })
	if came, gone := bad.came.Load(), bad.gone.Load(); gone != 0 || came == 0 || came > 16 {
		t.Errorf("%d requests were made to the one that hangs and %d ended: want 16 at most, on their way all the time", came, gone)
	}
	close(bad.well)
	eventually(t, "all events of the one that hung", bad.has(128))
	stop()
	running.Wait()
	if s := r.Stats(); s.Dead != 0 || s.Outages != 0 || s.Sent != int64(len(all)+128) {
		t.Errorf("%+v", s)
	}
	bad.mu.Lock()
	defer bad.mu.Unlock()
	if len(bad.delivered) != 128 { // a request that went on behind its call is not repeated
		t.Errorf("%d deliveries of 128 events", len(bad.delivered))
	}
	at := map[string]int{}
	for i, id := range bad.delivered {
		at[id] = i
	}
	for i := range 64 {
		if a, b := at[fmt.Sprint("OrderPaid:A-", i, ":v1")], at[fmt.Sprint("OrderPaid:A-", i, ":v2")]; a >= b {
			t.Errorf("of A-%d the second event came before the first", i)
		}
	}
}

// What a request comes to behind its call is the answer for the event, whatever it is.
func TestALateAnswerCountsWhenTheEventIsTriedAgain(t *testing.T) {
	for status, want := range map[int]convergo.Verdict{200: convergo.Again, 500: convergo.Again, 410: convergo.Park} {
		release, came := make(chan struct{}), make(chan struct{}, 9)
		var ended sync.WaitGroup
		b := two(t, func(w http.ResponseWriter, _ *http.Request) {
			ended.Add(1)
			defer ended.Done()
			came <- struct{}{}
			<-release
			w.WriteHeader(status)
		}, func(http.ResponseWriter, *http.Request) {}, Config{Patience: 20 * time.Millisecond})
		publish := func() error { return b.Publish(t.Context(), []convergo.Event{paid("A", 1)})[0] }
		for range 3 {
			if err := publish(); convergo.VerdictOf(err) != convergo.Wait {
				t.Errorf("on its way: %v", err)
			}
		}
		close(release)
		eventually(t, "the request ends", func() bool {
			b.endpoints[0].mu.Lock()
			defer b.endpoints[0].mu.Unlock()
			return b.endpoints[0].flying == 0
		})
		var err error
		eventually(t, "its answer", func() bool { err = publish(); return convergo.VerdictOf(err) != convergo.Wait })
		if (err == nil) != (status == 200) || convergo.VerdictOf(err) != want || err != nil && !strings.Contains(err.Error(), fmt.Sprint(status)) {
			t.Errorf("%d: %v", status, err)
		}
		if len(came) != 1 {
			t.Errorf("%d: %d requests were made", status, len(came))
		}
	}
}

// Nothing is sent behind a call that its relay has given up: its lease may be another's.
func TestACallThatIsGivenUpTakesItsRequestsAlong(t *testing.T) {
	bad := &hanging{well: make(chan struct{})}
	b := two(t, bad.ServeHTTP, func(http.ResponseWriter, *http.Request) {}, Config{Patience: time.Minute})
	ctx, give := context.WithCancel(t.Context())
	answered := make(chan []error, 1)
	go func() { answered <- b.Publish(ctx, []convergo.Event{paid("A", 1), paid("A", 2)}) }()
	eventually(t, "a request", func() bool { return bad.came.Load() == 1 })
	give()
	if errs := <-answered; slices.ContainsFunc(errs, func(err error) bool { return convergo.VerdictOf(err) != convergo.Outage }) {
		t.Error(errs)
	}
	eventually(t, "the request ends", func() bool { return bad.gone.Load() == 1 })
}

// An endpoint that was down gets one request until it has answered, and nobody waits for that.
func TestAnEndpointThatWasDownGetsOneProbe(t *testing.T) {
	bad := &hanging{well: make(chan struct{})}
	now := time.Unix(1_796_000_000, 0)
	var clock atomic.Int64
	b := two(t, bad.ServeHTTP, func(http.ResponseWriter, *http.Request) {}, Config{
		Timeout: 300 * time.Millisecond, Patience: 10 * time.Second, Now: func() time.Time { return now.Add(time.Duration(clock.Load())) },
	})
	var events []convergo.Event
	for i := range 40 {
		events = append(events, paid(fmt.Sprint("A-", i), 1))
	}
	_ = b.Publish(t.Context(), events)
	if n := bad.came.Load(); n != 16 {
		t.Errorf("%d requests at first, want 16", n)
	}
	for i := range 3 {
		clock.Add(int64(time.Minute))
		before := bad.came.Load()
		errs := b.Publish(t.Context(), events)
		if n := bad.came.Load() - before; n != 1 {
			t.Errorf("probe %d: %d requests, want one", i+1, n)
		}
		for _, err := range errs {
			if convergo.VerdictOf(err) != convergo.Wait {
				t.Fatal(err)
			}
		}
	}
	close(bad.well)
	clock.Add(int64(time.Minute))
	eventually(t, "all events", func() bool { _ = b.Publish(t.Context(), events); clock.Add(int64(time.Minute)); return bad.has(40)() })
}

func TestWhatIsKeptOfLateAnswersAndUnsettledEventsIsBounded(t *testing.T) {
	s := shelf[int]{most: 10}
	up := func(n int) int { return n + 1 }
	for round := range 5 {
		for i := range 100 {
			s.put(paid(fmt.Sprint(i), 1), "shop", up)
			if i%2 == round%2 {
				s.drop(paid(fmt.Sprint(i), 1), "shop")
			}
		}
		if len(s.held) > 10 || len(s.order) > 20 {
			t.Fatalf("%d kept, %d in order", len(s.held), len(s.order))
		}
	}
	s.put(paid("new", 1), "shop", up)
	s.put(paid("new", 1), "shop", up)
	s.put(paid("new", 1), "stock", up)
	other := paid("new", 1)
	other.Payload = []byte("other")
	for e, want := range map[string]int{"shop": 2, "stock": 1, "third": 0} {
		if n, _ := s.of(paid("new", 1), e); n != want {
			t.Errorf("%s: %d, want %d", e, n, want)
		}
	}
	if _, found := s.of(other, "shop"); found {
		t.Error("another payload under the same key is taken for the event")
	}
}

// Another relay has sent the event since, or somebody has discarded it. A replay must arrive all the same.
func TestALateAnswerThatNobodyTookIsNoneForAReplay(t *testing.T) {
	release, came := make(chan struct{}), make(chan struct{}, 9)
	b := two(t, func(http.ResponseWriter, *http.Request) {
		came <- struct{}{}
		<-release
	}, func(http.ResponseWriter, *http.Request) {}, Config{Patience: 20 * time.Millisecond})
	e := paid("A", 1)
	e.Position = 1
	if err := b.Publish(t.Context(), []convergo.Event{e})[0]; convergo.VerdictOf(err) != convergo.Wait {
		t.Errorf("on its way: %v", err)
	}
	close(release)
	b.flying.Wait()
	e.Position = 2
	if err := b.Publish(t.Context(), []convergo.Event{e})[0]; err != nil {
		t.Error(err)
	}
	if len(came) != 2 {
		t.Errorf("%d requests were made", len(came))
	}
}

// Nobody told this process that another relay has brought the event to its end.
func TestAReplayGoesToEndpointsThatHadTheEventToo(t *testing.T) {
	var came, status atomic.Int64
	status.Store(http.StatusBadRequest)
	secret, _ := key(t, "a")
	has := serve(t, func(http.ResponseWriter, *http.Request) { came.Add(1) })
	refuses := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(status.Load())) })
	b := open(t, Config{Endpoints: []Endpoint{
		{Name: "has", URL: has, Secrets: []Secret{secret}}, {Name: "refuses", URL: refuses, Secrets: []Secret{secret}},
	}})
	e := paid("A", 1)
	e.Position = 1
	for range 2 {
		if err := b.Publish(t.Context(), []convergo.Event{e})[0]; err == nil {
			t.Error("one has refused it")
		}
	}
	if n := came.Load(); n != 1 {
		t.Errorf("it came %d times before the replay", n)
	}
	e.Position = 2
	status.Store(http.StatusOK)
	if err := b.Publish(t.Context(), []convergo.Event{e})[0]; err != nil || came.Load() != 2 {
		t.Errorf("it came %d times, %v", came.Load(), err)
	}
}

// An endpoint that is slow and well has all its slots in use: it is not waited for, and not left alone either.
func TestAQuietEndpointGetsWhatItHasRoomForAndNobodyWaits(t *testing.T) {
	const patience = enough - time.Second // after enough it would be down
	bad := &hanging{well: make(chan struct{})}
	b := two(t, bad.ServeHTTP, func(http.ResponseWriter, *http.Request) {}, Config{Concurrency: 2, Patience: patience})
	underway := func(order string) bool {
		t.Helper()
		err := b.Publish(t.Context(), []convergo.Event{paid(order, 1)})[0]
		var told interface{ Underway() bool }
		if !errors.As(err, &told) || convergo.VerdictOf(err) != convergo.Wait {
			t.Fatal(err)
		}
		return told.Underway()
	}
	if !underway("A") {
		t.Error("A was sent, and is not said to be on its way")
	}
	before := time.Now()
	if !underway("B") {
		t.Error("B was not sent although there is room")
	}
	if underway("C") {
		t.Error("C is said to be on its way although there is no room")
	}
	if !underway("A") {
		t.Error("A is on its way no more")
	}
	if took := time.Since(before); took >= patience {
		t.Errorf("one that has answered nothing while a call waited is waited for again: %v", took)
	}
	eventually(t, "both requests", func() bool { return bad.came.Load() == 2 })
}

// Only an event that every endpoint has or was sent is on its way.
func TestAnEventThatWaitsForOneOfItsEndpointsIsNotOnItsWay(t *testing.T) {
	sent := &Closed{Endpoint: "a", underway: true}
	for name, c := range map[string]struct {
		others []error
		want   bool
	}{
		"sent":            {[]error{nil, sent}, true},
		"and left alone":  {[]error{sent, &Closed{Endpoint: "b"}}, false},
		"left alone, and": {[]error{&Closed{Endpoint: "b"}, sent}, false},
	} {
		b := open(t, Config{Endpoints: []Endpoint{{Name: "a", URL: "https://a.example", Secrets: []Secret{{key: strings.Repeat("k", 32)}}}}})
		var told interface{ Underway() bool }
		if err := b.verdict(c.others); !errors.As(err, &told) || told.Underway() != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
