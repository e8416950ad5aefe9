package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/testserver"
)

func shared(t *testing.T) Config {
	t.Helper()
	return settings(testserver.Shared(t, &servers, "redis", testserver.OpenRedis))
}

func event(id string, version int64) convergo.Event { return sample(id, version) }

func series(id string, from, to int64) (events []convergo.Event) {
	for v := from; v <= to; v++ {
		events = append(events, event(id, v))
	}
	return events
}

func publish(t *testing.T, b *Broker, events ...convergo.Event) {
	t.Helper()
	for i, err := range b.Publish(t.Context(), events) {
		if err != nil {
			t.Fatalf("%s: %v", events[i].Key, err)
		}
	}
}

func subscribe(t *testing.T, b *Broker, consumer string) *source {
	t.Helper()
	s, err := b.Subscribe(t.Context(), consumer, []convergo.Subject{{Topic: "order"}})
	if err != nil {
		t.Fatal(err)
	}
	return s.(*source)
}

func fetch(t *testing.T, s *source, n int) []inbox.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var all []inbox.Delivery
	for len(all) < n {
		got, err := s.Fetch(ctx, n-len(all))
		if err != nil {
			t.Fatalf("after %d of %d: %v", len(all), n, err)
		}
		all = append(all, got...)
	}
	return all
}

func ack(t *testing.T, deliveries ...inbox.Delivery) {
	t.Helper()
	for _, d := range deliveries {
		if err := d.Ack(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func versions(deliveries []inbox.Delivery) (all []int64) {
	for _, d := range deliveries {
		all = append(all, d.Event.Version)
	}
	return all
}

// losses is where a broker's reports go.
func losses(cfg *Config) <-chan Loss {
	reported := make(chan Loss, 64)
	cfg.OnLoss = func(l Loss) { reported <- l }
	return reported
}

// told waits for a report.
func told(t *testing.T, reported <-chan Loss) Loss {
	t.Helper()
	patience := time.NewTimer(10 * time.Second)
	defer patience.Stop()
	select {
	case l := <-reported:
		return l
	case <-patience.C:
		t.Fatal("no loss was reported")
		return Loss{}
	}
}

func TestCaseB25WhatIsReturnedComesAgainInOrderAndNothingNewerBefore(t *testing.T) {
	cfg := shared(t)
	cfg.AckWait = time.Minute
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	publish(t, b, series("O-1", 1, 4)...)
	got := fetch(t, s, 3) // the fourth is read ahead
	ack(t, got[0])
	const delay = 300 * time.Millisecond
	start := time.Now()
	for _, d := range got[1:] { // the store is down: all goes back
		if err := d.Return(t.Context(), delay); err != nil {
			t.Fatal(err)
		}
	}
	publish(t, b, event("O-1", 5))
	if came := versions(fetch(t, s, 4)); !slices.Equal(came, []int64{2, 3, 4, 5}) || time.Since(start) < delay {
		t.Errorf("%v came after %s", came, time.Since(start))
	}
}

func TestCaseB05WhatNoReplicaHasIsNotConfirmedWhenOneMust(t *testing.T) {
	cfg := shared(t)
	cfg.Replicas, cfg.Timeout = 1, 500*time.Millisecond
	b := open(t, cfg)
	err := b.Publish(t.Context(), []convergo.Event{event("O-1", 1)})[0]
	if convergo.VerdictOf(err) != convergo.Outage || !strings.Contains(fmt.Sprint(err), "0 of 1 replicas") {
		t.Errorf("error %v", err)
	}
}

func TestAFullServerIsAnOutageAndNothingOvertakes(t *testing.T) {
	server := testserver.Own(t, testserver.OpenRedis)
	cfg := settings(server)
	cfg.Chunk = 4
	b := open(t, cfg)
	publish(t, b, event("O-1", 1))
	limit := func(bytes string) {
		if err := b.client.ConfigSet(t.Context(), "maxmemory", bytes).Err(); err != nil {
			t.Fatal(err)
		}
	}
	limit("1mb")
	events := series("O-1", 2, 60)
	for i := range events {
		events[i].Payload = make([]byte, 60_000)
	}
	stored := 0
	for i, err := range b.Publish(t.Context(), events) {
		switch {
		case err == nil && stored < i:
			t.Fatalf("%s is confirmed although an earlier event failed", events[i].Key)
		case err == nil:
			stored++
		case convergo.VerdictOf(err) != convergo.Outage:
			t.Fatalf("%s: %v: the server is full, and the message is blamed", events[i].Key, err)
		}
	}
	if stored == len(events) {
		t.Fatal("the server was never full")
	}
	limit("0")
	publish(t, b, events[stored:]...)
	want := int64(0)
	for _, v := range versions(fetch(t, subscribe(t, b, "payment"), 60)) {
		if want++; v != want {
			t.Fatalf("version %d came in place of %d", v, want)
		}
	}
}

func TestAnEntryDeletedBeforeItWasAcknowledgedIsReported(t *testing.T) {
	cfg := shared(t)
	reported := losses(&cfg)
	b := open(t, cfg)
	publish(t, b, series("O-1", 1, 3)...)
	s := subscribe(t, b, "payment")
	ack(t, fetch(t, s, 3)[2]) // 1 and 2 are out
	stream := b.streamKey("order", b.partitionOf(event("O-1", 1).Aggregate))
	entries, err := b.client.XRange(t.Context(), stream, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.client.XDel(t.Context(), stream, entries[0].ID).Err(); err != nil {
		t.Fatal(err)
	}
	if came := versions(fetch(t, s, 1)); came[0] != 2 { // after AckWait
		t.Errorf("%v came", came)
	}
	if l := told(t, reported); !slices.Equal(l.IDs, []string{entries[0].ID}) || l.Consumer != "payment" || b.Lost() != 1 {
		t.Errorf("reported: %+v", l)
	}
	// The same when another instance takes over.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.client.XDel(t.Context(), stream, entries[1].ID).Err(); err != nil {
		t.Fatal(err)
	}
	publish(t, b, event("O-1", 4))
	if came := versions(fetch(t, subscribe(t, b, "payment"), 1)); came[0] != 4 {
		t.Errorf("%v came", came)
	}
	if l := told(t, reported); !slices.Equal(l.IDs, []string{entries[1].ID}) {
		t.Errorf("reported: %+v", l)
	}
}

func TestAServerThatLostItsDataIsReportedAndCanBeFilledAgain(t *testing.T) {
	server := testserver.Own(t, testserver.OpenRedis)
	cfg := settings(server)
	reported := losses(&cfg)
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	publish(t, b, series("O-1", 1, 3)...)
	ack(t, fetch(t, s, 2)...)
	if err := b.client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	publish(t, b, series("O-1", 1, 4)...) // a replay, and what is new
	if l := told(t, reported); l.Topic != "order" {
		t.Errorf("reported: %+v", l)
	}
	last := int64(0)
	for last < 4 { // Fetch says that the position was gone, as an error or in the log only
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		got, err := s.Fetch(ctx, 10)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		ack(t, got...)
		last = got[len(got)-1].Event.Version
	}
}

func TestTrimmingStopsAtTheSlowestConsumer(t *testing.T) {
	cfg := shared(t)
	cfg.MaxAge, cfg.AckWait, cfg.Lease = time.Nanosecond, time.Minute, 10*time.Second
	reported := losses(&cfg)
	b := open(t, cfg)
	fast, slow := subscribe(t, b, "fast"), subscribe(t, b, "slow")
	publish(t, b, series("O-1", 1, 1000)...)
	ack(t, fetch(t, fast, 1000)...)
	out := fetch(t, slow, 400)
	ack(t, out[1:]...) // the first one is out, and holds all back
	for _, s := range []*source{fast, slow} {
		s.line.Lock()
		if err := s.flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.line.Unlock()
	}
	if n, err := b.Trim(t.Context()); n != 0 || err != nil {
		t.Errorf("%d trimmed, %v: the slow consumer has not acknowledged the first", n, err)
	}
	ack(t, out[0])
	slow.line.Lock()
	if err := slow.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	slow.line.Unlock()
	if err := slow.Close(); err != nil { // what it has read ahead is for the next instance
		t.Fatal(err)
	}
	n, err := b.Trim(t.Context())
	if n != 400 || err != nil {
		t.Errorf("%d trimmed, %v: 400 are done with", n, err)
	}
	if came := versions(fetch(t, subscribe(t, b, "slow"), 600)); came[0] != 401 || came[599] != 1000 {
		t.Errorf("%d … %d came", came[0], came[599])
	}
	if err := b.Forget(t.Context(), "slow"); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Trim(t.Context()); n != 600 || err != nil {
		t.Errorf("%d trimmed, %v: nobody needs the rest any more", n, err)
	}
	select {
	case l := <-reported:
		t.Errorf("reported: %+v", l)
	default:
	}
}

// A reader that was stopped for longer than its lease, between its look at the clock and its request.
func TestAReaderWhoseLeaseIsAnothersReadsNothing(t *testing.T) {
	cfg := shared(t)
	cfg.Lease = 30 * time.Second // no renewal comes in between
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	publish(t, b, event("O-1", 1))
	ack(t, fetch(t, s, 1)...)
	at := b.partitionOf(event("O-1", 1).Aggregate)
	if err := b.client.Set(t.Context(), b.leaseKey("order", at, "payment"), "another#99", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	publish(t, b, event("O-1", 2))
	if _, _, err := s.look(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	if got := s.pick(10); len(got) > 0 {
		t.Errorf("%v was handed out", versions(got))
	}
	groups, err := b.client.XInfoGroups(t.Context(), b.streamKey("order", at)).Result()
	if err != nil || groups[0].Lag != 1 {
		t.Errorf("the group has read what is another's: %+v, %v", groups, err)
	}
}

func TestATopicWithOtherPartitionsIsRefusedWithTheRemedy(t *testing.T) {
	cfg := shared(t)
	publish(t, open(t, cfg), event("O-1", 1))
	cfg.Partitions = 4
	b := open(t, cfg)
	errs := b.Publish(t.Context(), []convergo.Event{event("O-1", 2)})
	_, err := b.Subscribe(t.Context(), "payment", []convergo.Subject{{Topic: "order"}})
	for _, err := range []error{errs[0], err} {
		if !errors.Is(err, ErrPartitions) || !strings.Contains(err.Error(), "set it to 8") || convergo.VerdictOf(err) == convergo.Park {
			t.Errorf("error %v", err)
		}
	}
}

func settingsOf(warnings []relay.Warning) (names []string) {
	for _, w := range warnings {
		names = append(names, w.Setting)
		if w.Loses == "" || w.Want == "" {
			names = append(names, "(says nothing)")
		}
	}
	return names
}

func TestTheCheckSaysWhatALaxServerLoses(t *testing.T) {
	b := open(t, shared(t))
	found, err := b.Check(t.Context())
	if names := settingsOf(found); err != nil || !slices.Equal(names, []string{"connected_slaves", "replicas (Config.Replicas)"}) {
		t.Errorf("one strict server: %v, %v", names, err)
	}
	lax := open(t, settings(testserver.Own(t, testserver.OpenRedisWith("--appendonly", "no", "--maxmemory-policy", "allkeys-lru"))))
	found, err = lax.Check(t.Context())
	if names := settingsOf(found); err != nil || !slices.Contains(names, "appendonly") || !slices.Contains(names, "maxmemory-policy") {
		t.Errorf("a lax server: %v, %v", names, err)
	}
	lazy := open(t, settings(testserver.Own(t, testserver.OpenRedisWith("--appendfsync", "everysec"))))
	found, err = lazy.Check(t.Context())
	if names := settingsOf(found); err != nil || !slices.Contains(names, "appendfsync") {
		t.Errorf("a lazy server: %v, %v", names, err)
	}
}

func TestPendingCountsWhatAConsumerIsNotDoneWith(t *testing.T) {
	b := open(t, shared(t))
	s := subscribe(t, b, "payment")
	subscribe(t, b, "ledger")
	publish(t, b, series("O-1", 1, 5)...)
	ack(t, fetch(t, s, 3)...)
	s.line.Lock()
	defer s.line.Unlock()
	if err := s.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	pending, err := b.Pending(t.Context())
	if err != nil || pending["payment"] != 2 || pending["ledger"] != 5 {
		t.Errorf("pending %v, %v", pending, err)
	}
}
