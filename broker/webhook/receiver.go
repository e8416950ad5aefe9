package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

// ReceiverConfig of a Receiver. Secrets is required.
type ReceiverConfig struct {
	// Secrets of which any may have signed; several during a rotation.
	Secrets []Secret
	// Room is how many requests may wait to be handled, and how many bodies are read at a time; more are told to come again (503).
	// Default 256.
	Room int
	// Timeout is how long a body may take to arrive, and how long a request waits for its event to be handled, then it is told to come
	// again. Default 15 s: below the sender's.
	Timeout time.Duration
	Now     func() time.Time // default time.Now
}

// Receiver is the subscriber's side: an http.Handler to be served under the endpoint's URL, and a source of deliveries. A request
// is answered with 2xx only after its delivery was acknowledged, so that the sender keeps what was not handled; nothing is stored here.
// It deduplicates nothing: the inbox does.
//
// A body must be read before its signature can be checked. What a stranger can make it do is bounded: without the headers of a signed
// request nothing is read, of a body no more than an event may have, of Room bodies at a time. How many requests an address may make is
// for the server around it.
type Receiver struct {
	cfg     ReceiverConfig
	reading chan struct{} // one for each body that is being read
	queue   chan *request
	stop    chan struct{}
	once    sync.Once
}

// request is one POST whose sender waits.
type request struct {
	event   convergo.Event
	fault   error
	attempt int                // 0: the sender does not tell
	answer  chan time.Duration // acknowledged: -1; returned: the delay
	left    <-chan struct{}    // closed when nobody waits any more
}

const acknowledged = time.Duration(-1)

// NewReceiver makes a Receiver.
func NewReceiver(cfg ReceiverConfig) (*Receiver, error) {
	if len(cfg.Secrets) == 0 {
		return nil, errors.New("webhook receiver: no secrets: anybody could send")
	}
	for _, s := range cfg.Secrets {
		if s.IsZero() {
			return nil, errors.New("webhook receiver: a secret is empty")
		}
	}
	if cfg.Room <= 0 {
		cfg.Room = 256
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 15 * time.Second
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Receiver{cfg: cfg, reading: make(chan struct{}, cfg.Room), queue: make(chan *request, cfg.Room), stop: make(chan struct{})}, nil
}

// ServeHTTP implements http.Handler: 204 handled, 400 not a signed message, 401 a wrong signature or time, 405, 413, 503 not now.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "want POST", http.StatusMethodNotAllowed)
		return
	}
	// Also for what is refused: the server reads some of a body that nobody has read before it sends the answer. Not every server has
	// deadlines to set; one of its own holds then.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(r.cfg.Timeout))
	for _, v := range q.Header.Values(HeaderEvent) {
		if len(v) > maxEventHeader {
			http.Error(w, HeaderEvent+" is too long", http.StatusRequestHeaderFieldsTooLarge)
			return
		}
	}
	if _, err := stampOf(q.Header); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case r.reading <- struct{}{}:
	default:
		notNow(w, time.Second)
		return
	}
	body, ok := r.verified(w, q)
	<-r.reading
	if ok {
		r.accept(w, q, body)
	}
}

// verified reads the body and checks its signature. It has answered when ok is false.
func (r *Receiver) verified(w http.ResponseWriter, q *http.Request) (body []byte, ok bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, q.Body, convergo.MaxPayloadBytes))
	if err != nil {
		status := http.StatusBadRequest
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			status = http.StatusRequestEntityTooLarge
		}
		http.Error(w, fmt.Sprintf("the body cannot be read, or is longer than %d bytes", convergo.MaxPayloadBytes), status)
		return nil, false
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	if err := verify(q.Header, body, r.cfg.Now(), r.cfg.Secrets); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return nil, false
	}
	return body, true
}

// accept queues a verified request and waits for what becomes of it.
func (r *Receiver) accept(w http.ResponseWriter, q *http.Request, body []byte) {
	ctx, cancel := context.WithTimeout(q.Context(), r.cfg.Timeout)
	defer cancel()
	item := &request{answer: make(chan time.Duration, 1), left: ctx.Done()}
	item.event, item.fault = decode(q.Header, body)
	item.attempt = attemptOf(q.Header, r.cfg.Secrets)
	wait := time.Second
	select {
	case <-r.stop:
	case r.queue <- item:
		select {
		case wait = <-item.answer:
		case <-ctx.Done():
		case <-r.stop:
		}
	default:
	}
	if wait == acknowledged {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	notNow(w, wait)
}

// notNow tells the sender when to come again.
func notNow(w http.ResponseWriter, wait time.Duration) {
	// Rounded up: the header knows whole seconds.
	w.Header().Set("Retry-After", strconv.FormatInt(int64((wait+time.Second-1)/time.Second), 10))
	http.Error(w, "not now", http.StatusServiceUnavailable)
}

// Close makes waiting requests and fetches end. What was not acknowledged stays with the sender.
func (r *Receiver) Close() error {
	r.once.Do(func() { close(r.stop) })
	return nil
}

var errReceiverClosed = errors.New("webhook receiver: closed")

// Fetch implements inbox.Source. Requests whose sender has gone are left out: he sends them again.
func (r *Receiver) Fetch(ctx context.Context, most int) ([]inbox.Delivery, error) {
	if err := ctx.Err(); err != nil {
		return nil, convergo.Unreachable(err)
	}
	var got []inbox.Delivery
	take := func(item *request) {
		select {
		case <-item.left:
		default:
			got = append(got, item.delivery())
		}
	}
	for {
		select {
		case item := <-r.queue:
			take(item)
		default:
			if len(got) > 0 {
				return got, nil
			}
			select {
			case item := <-r.queue:
				take(item)
			case <-r.stop:
				return nil, convergo.Unreachable(errReceiverClosed)
			case <-ctx.Done():
				return nil, convergo.Unreachable(ctx.Err())
			}
		}
		if len(got) >= max(most, 1) {
			return got, nil
		}
	}
}

func (q *request) delivery() inbox.Delivery {
	reply := func(wait time.Duration) error {
		select {
		case <-q.left:
			return convergo.Unreachable(fmt.Errorf("webhook receiver: %s comes again: its sender waits no more", q.event.Key))
		case q.answer <- wait:
		default: // answered before
		}
		return nil
	}
	return inbox.Delivery{
		Event: q.event, Malformed: q.fault, Attempt: q.attempt,
		Ack:    func(context.Context) error { return reply(acknowledged) },
		Return: func(_ context.Context, delay time.Duration) error { return reply(max(delay, 0)) },
	}
}
