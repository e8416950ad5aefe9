package kafka

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

// acked acknowledges and commits.
func acked(t *testing.T, s *source, got []inbox.Delivery) {
	t.Helper()
	for _, d := range got {
		if err := d.Ack(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// replaceTopic makes the topic anew as another process does that was faster, and fills it with n events.
func replaceTopic(t *testing.T, cluster *kfake.Cluster, cfg Config, n int64) {
	t.Helper()
	if err := cluster.DeleteTopic(cfg.Prefix + "order"); err != nil {
		t.Fatal(err)
	}
	other := open(t, cfg)
	for v := int64(1); v <= n; v++ {
		publish(t, other, event("O-1", v))
	}
}

func wanted(n int64) (all []int64) {
	for v := int64(1); v <= n; v++ {
		all = append(all, v)
	}
	return all
}

// The new log has grown past the old position before anybody looks: only the topic's id tells.
func TestALivingSourceReadsATopicThatWasMadeAnewFromItsBeginning(t *testing.T) {
	cluster, cfg := fake(t)
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	publish(t, b, event("O-1", 1), event("O-1", 2), event("O-1", 3))
	acked(t, s, fetch(t, s, 3))
	replaceTopic(t, cluster, cfg, 8)
	if got := versions(fetch(t, s, 8)); fmt.Sprint(got) != fmt.Sprint(wanted(8)) {
		t.Errorf("%v came", got)
	}
	if b.Lost() == 0 {
		t.Error("no loss was reported")
	}
}

// A process that outlived the old topic has committed its position into the group, and the new log is longer.
func TestACommitThatNamesAnotherTopicIsNotUsed(t *testing.T) {
	cluster, cfg := fake(t)
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	publish(t, b, event("O-1", 1), event("O-1", 2), event("O-1", 3))
	acked(t, s, fetch(t, s, 3))
	name, at := b.topicName("order"), b.partitionOf(event("O-1", 1).Aggregate)
	old, err := b.admin.FetchOffsets(t.Context(), b.groupName("payment"))
	if err != nil {
		t.Fatal(err)
	}
	before, _ := old.Lookup(name, at)
	if !strings.HasPrefix(before.Metadata, positionOf) {
		t.Fatalf("the commit does not tell its topic: %q", before.Metadata)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	replaceTopic(t, cluster, cfg, 8)
	commit(t, b, kadm.Offset{Topic: name, Partition: at, At: 3, LeaderEpoch: -1, Metadata: before.Metadata})
	losses := make(chan Loss, 8)
	cfg.OnLoss = func(l Loss) { losses <- l }
	s = subscribe(t, open(t, cfg), "payment")
	got := fetch(t, s, 8)
	if came := versions(got); fmt.Sprint(came) != fmt.Sprint(wanted(8)) {
		t.Errorf("%v came", came)
	}
	if l := told(t, losses); l.Consumer != "payment" || l.Partition != int(at) || !strings.Contains(l.What, "another topic") {
		t.Errorf("reported: %+v", l)
	}
	// From now on the position is the new topic's, and is believed.
	acked(t, s, got)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	publish(t, b, event("O-1", 9))
	if came := versions(fetch(t, subscribe(t, open(t, cfg), "payment"), 1)); came[0] != 9 {
		t.Errorf("%v came", came)
	}
}

// An older version's commit names no topic. Behind the end of the log it is none all the same.
func TestACommitBehindTheEndOfTheLogIsNotUsed(t *testing.T) {
	_, cfg := fake(t)
	losses := make(chan Loss, 8)
	cfg.OnLoss = func(l Loss) { losses <- l }
	b := open(t, cfg)
	publish(t, b, event("O-1", 1), event("O-1", 2))
	at := b.partitionOf(event("O-1", 1).Aggregate)
	commit(t, b, kadm.Offset{Topic: b.topicName("order"), Partition: at, At: 40, LeaderEpoch: -1})
	s := subscribe(t, b, "payment")
	got := fetch(t, s, 2)
	if came := versions(got); fmt.Sprint(came) != "[1 2]" {
		t.Errorf("%v came", came)
	}
	if l := told(t, losses); !strings.Contains(l.What, "40") || l.Consumer != "payment" {
		t.Errorf("reported: %+v", l)
	}
	acked(t, s, got)
	if position := committed(t, b, "payment", at); position != 2 {
		t.Errorf("committed up to %d", position)
	}
}

func commit(t *testing.T, b *Broker, o kadm.Offset) {
	t.Helper()
	offsets := kadm.Offsets{}
	offsets.Add(o)
	if err := b.admin.CommitAllOffsets(t.Context(), b.groupName("payment"), offsets); err != nil {
		t.Fatal(err)
	}
}

// Producers of before a loss have numbers that the new cluster gives to others: they are not used again.
func TestProducersOfBeforeALossAreReplaced(t *testing.T) {
	cluster, cfg := fake(t)
	cfg.Producers = 1
	b := open(t, cfg)
	publish(t, b, event("O-1", 1))
	before := <-b.producers
	b.producers <- before
	replaceTopic(t, cluster, cfg, 1)
	errs := b.Publish(t.Context(), []convergo.Event{event("O-1", 2)})
	if errs[0] != nil { // it has found out
		errs = b.Publish(t.Context(), []convergo.Event{event("O-1", 2)})
	}
	if errs[0] != nil {
		t.Error(errs[0])
	}
	if now := <-b.producers; now.Client == before.Client {
		t.Error("the old producer is still used")
	} else {
		b.producers <- now
	}
}
