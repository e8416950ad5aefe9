package kafka

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/brokertest"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/relay"
)

// fake is a cluster of two nodes in this process, for what a real one does not do when asked.
func fake(t *testing.T, opts ...kfake.Opt) (*kfake.Cluster, Config) {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(2), kfake.GroupMinSessionTimeout(time.Millisecond)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	cfg := settings(c.ListenAddrs()[0])
	cfg.Partitions = 2
	return c, cfg
}

func TestKafkaObeysTheLawsOnAFakeCluster(t *testing.T) {
	brokertest.Run(t, func(t *testing.T) brokertest.Backend {
		_, cfg := fake(t)
		return brokertest.Backend{
			Broker: open(t, cfg),
			Guarantees: brokertest.Guarantees{
				GathersAcks:         true,
				OrderedPerAggregate: true, Shares: true, KeepsHistory: true, DelaysReturns: true, Redelivers: cfg.AckWait, Prompt: 5 * time.Second,
			},
		}
	})
}

func event(id string, version int64) convergo.Event { return sample(id, version) }

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
	var all []inbox.Delivery
	for len(all) < n {
		got, err := s.Fetch(t.Context(), n-len(all))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, got...)
	}
	return all
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

func versions(deliveries []inbox.Delivery) (all []int64) {
	for _, d := range deliveries {
		all = append(all, d.Event.Version)
	}
	return all
}

func committed(t *testing.T, b *Broker, consumer string, at int32) int64 {
	t.Helper()
	offsets, err := b.admin.FetchOffsets(t.Context(), b.groupName(consumer))
	if err != nil {
		t.Fatal(err)
	}
	o, ok := offsets.Lookup(b.topicName("order"), at)
	if !ok {
		return -1
	}
	return o.At
}

func TestCaseB24AHigherOffsetIsNotCommittedWhileALowerOneIsOut(t *testing.T) {
	_, cfg := fake(t)
	b := open(t, cfg)
	for v := int64(1); v <= 12; v++ {
		publish(t, b, event("O-1", v))
	}
	at := b.partitionOf(event("O-1", 1).Aggregate)
	var n network
	mortal := cfg
	mortal.AckWait, mortal.dial = time.Minute, n.dial
	s := subscribe(t, open(t, mortal), "payment")
	for _, d := range fetch(t, s, 9) {
		if err := d.Ack(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	got := fetch(t, s, 3) // offsets 9, 10 and 11
	for _, d := range got[1:] {
		if err := d.Ack(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if position := committed(t, b, "payment", at); position != 9 {
		t.Errorf("committed up to %d while offset 9 is out", position)
	}
	n.die()
	if again := versions(fetch(t, subscribe(t, b, "payment"), 3)); fmt.Sprint(again) != "[10 11 12]" {
		t.Errorf("after the death of its reader came %v", again)
	}
}

func TestCaseB25WhatIsReturnedComesAgainInOrderAndNothingNewerBefore(t *testing.T) {
	_, cfg := fake(t)
	cfg.AckWait = time.Minute
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	publish(t, b, event("O-1", 1), event("O-1", 2), event("O-1", 3), event("O-1", 4))
	got := fetch(t, s, 3) // the fourth is read ahead
	if err := got[0].Ack(t.Context()); err != nil {
		t.Fatal(err)
	}
	const delay = 300 * time.Millisecond
	start := time.Now()
	for _, d := range got[1:] { // the store is down: all goes back
		if err := d.Return(t.Context(), delay); err != nil {
			t.Fatal(err)
		}
	}
	publish(t, b, event("O-1", 5))
	again := fetch(t, s, 4)
	if came := versions(again); fmt.Sprint(came) != "[2 3 4 5]" || time.Since(start) < delay {
		t.Errorf("%v came after %s", came, time.Since(start))
	}
	if err := s.commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if position := committed(t, b, "payment", b.partitionOf(got[0].Event.Aggregate)); position != 1 {
		t.Errorf("committed up to %d, acknowledged is offset 0 only", position)
	}
}

func TestCaseB05AnEventWhoseTopicIsGoneIsNotConfirmed(t *testing.T) {
	cluster, cfg := fake(t)
	losses := make(chan Loss, 8)
	cfg.OnLoss = func(l Loss) { losses <- l }
	cfg.Timeout = time.Second
	b := open(t, cfg)
	publish(t, b, event("O-1", 1))
	if err := cluster.DeleteTopic(b.topicName("order")); err != nil {
		t.Fatal(err)
	}
	errs := b.Publish(t.Context(), []convergo.Event{event("O-1", 2)})
	if errs[0] == nil || convergo.VerdictOf(errs[0]) != convergo.Outage {
		t.Fatalf("error %v with verdict %s", errs[0], convergo.VerdictOf(errs[0]))
	}
	publish(t, b, event("O-1", 2))
	if l := told(t, losses); l.Topic != "order" {
		t.Errorf("reported: %+v", l)
	}
	if got := versions(fetch(t, subscribe(t, b, "payment"), 1)); got[0] != 2 {
		t.Errorf("%v came", got)
	}
}

// The cluster refuses one batch for good. Its aggregates' later events, which did not fit into it, must not be sent.
func TestABatchThatFailsIsNotOvertaken(t *testing.T) {
	cluster, cfg := fake(t)
	cfg.MaxMessage = 4096
	b := open(t, cfg)
	publish(t, b, event("warm-up", 1))
	var mu sync.Mutex
	refused := 0
	cluster.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		mu.Lock()
		defer mu.Unlock()
		cluster.KeepControl()
		if refused++; refused > 1 {
			return nil, nil, false
		}
		return refusal44(r.(*kmsg.ProduceRequest)), nil, true
	})
	var events []convergo.Event
	for v := int64(1); v <= 40; v++ {
		events = append(events, event("O-1", v))
	}
	failed := 0
	for i, err := range b.Publish(t.Context(), events) {
		if err != nil {
			failed++
		} else if failed > 0 {
			t.Fatalf("%s is confirmed although an earlier event failed", events[i].Key)
		}
	}
	if failed != len(events) {
		t.Errorf("%d of %d events failed", failed, len(events))
	}
	at := b.partitionOf(events[0].Aggregate)
	if info := cluster.PartitionInfo(b.topicName("order"), at); info.HighWatermark > 1 {
		t.Errorf("%d events were stored", info.HighWatermark)
	}
}

func refusal44(r *kmsg.ProduceRequest) kmsg.Response {
	answer := r.ResponseKind().(*kmsg.ProduceResponse)
	for _, topic := range r.Topics {
		st := kmsg.NewProduceResponseTopic()
		st.Topic, st.TopicID = topic.Topic, topic.TopicID
		for _, p := range topic.Partitions {
			sp := kmsg.NewProduceResponseTopicPartition()
			sp.Partition, sp.ErrorCode = p.Partition, kerr.PolicyViolation.Code
			st.Partitions = append(st.Partitions, sp)
		}
		answer.Topics = append(answer.Topics, st)
	}
	return answer
}

func TestEventsOfATopicThatTooFewNodesCanNotHoldWait(t *testing.T) {
	_, cfg := fake(t)
	cfg.Replication = 3 // of two nodes
	b := open(t, cfg)
	found, err := b.Check(t.Context())
	if err != nil || !slices.ContainsFunc(found, func(w relay.Warning) bool { return strings.HasPrefix(w.Value, "3, on 2 nodes") }) {
		t.Errorf("the check says %v, %v", found, err)
	}
	errs := b.Publish(t.Context(), []convergo.Event{event("1", 1)})
	if err := errs[0]; convergo.VerdictOf(err) != convergo.Wait || !strings.Contains(err.Error(), "replicas (Config.Replication)") {
		t.Errorf("%v, verdict %v: want one that waits, with the remedy", err, convergo.VerdictOf(err))
	}
}

func TestATopicWithOtherPartitionsIsRefusedWithTheRemedy(t *testing.T) {
	cluster, cfg := fake(t)
	cfg.Partitions = 4
	b := open(t, cfg)
	if err := cluster.CreateTopic(b.topicName("order"), 6, nil); err != nil {
		t.Fatal(err)
	}
	errs := b.Publish(t.Context(), []convergo.Event{event("O-1", 1)})
	_, err := b.Subscribe(t.Context(), "payment", []convergo.Subject{{Topic: "order"}})
	for _, err := range []error{errs[0], err} {
		if !errors.Is(err, ErrPartitions) || !strings.Contains(err.Error(), "set it to 6") || convergo.VerdictOf(err) == convergo.Park {
			t.Errorf("error %v", err)
		}
	}
}

func TestPartitionsThatWereAddedAreNoticed(t *testing.T) {
	_, cfg := fake(t)
	b := open(t, cfg)
	publish(t, b, event("O-1", 1))
	if _, err := b.admin.CreatePartitions(t.Context(), 1, b.topicName("order")); err != nil {
		t.Fatal(err)
	}
	b.doubt("order") // a minute passes
	if errs := b.Publish(t.Context(), []convergo.Event{event("O-1", 2)}); !errors.Is(errs[0], ErrPartitions) {
		t.Errorf("error %v", errs[0])
	}
}

func TestEventsThatLeftUnreadAreReported(t *testing.T) {
	cluster, cfg := fake(t)
	losses := make(chan Loss, 8)
	cfg.OnLoss = func(l Loss) { losses <- l }
	b := open(t, cfg)
	at := b.partitionOf(event("O-1", 1).Aggregate)
	for v := int64(1); v <= 6; v++ {
		publish(t, b, event("O-1", v))
	}
	s := subscribe(t, b, "payment")
	for _, d := range fetch(t, s, 2) {
		if err := d.Ack(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cluster.DeleteRecords(b.topicName("order"), at, 5); err != nil {
		t.Fatal(err)
	}
	if got := versions(fetch(t, subscribe(t, b, "payment"), 1)); got[0] != 6 {
		t.Errorf("%v came", got)
	}
	if l := told(t, losses); l.Events != 3 || l.Consumer != "payment" || l.Partition != int(at) {
		t.Errorf("reported: %+v", l)
	}
}

// A process that was stopped for longer than its session has records in memory that another instance may work on by now.
func TestAMemberThatWasNotHeardOfHandsOutNothing(t *testing.T) {
	_, cfg := fake(t)
	cfg.Session = time.Minute // no heartbeat comes in between
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	publish(t, b, event("O-1", 1), event("O-1", 2))
	fetch(t, s, 1)
	s.member.heard.Store(int64(-time.Minute))
	if got, _ := s.pick(s.member, 10); len(got) > 0 {
		t.Errorf("%v was handed out", versions(got))
	}
	s.member.heard.Store(int64(time.Since(s.member.start)))
	if got := versions(fetch(t, s, 1)); got[0] != 2 {
		t.Errorf("%v came", got)
	}
}
