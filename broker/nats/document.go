package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/convergo/convergo"
)

// groupKey is the last part of the key of a consumer's document: "consumer.group". Its positions are under "consumer.0" and on.
const groupKey = "group"

// document is what the instances of a consumer agree on. Whoever changes it writes against the revision that he has read.
type document struct {
	// Subjects that any instance has ever asked for. All instances read by these, whatever they asked for themselves: one of an
	// older version would else pass over events that it does not know and the newer ones need. They only grow.
	Subjects []convergo.Subject `json:"subjects"`
	Members  map[string]member  `json:"members"` // by instance
	Owners   []owner            `json:"owners"`  // by partition
}

type member struct {
	Beat     int64  `json:"beat"`     // another one with each sign of life
	Subjects string `json:"subjects"` // that it reads by
}

type owner struct {
	ID   string `json:"id"`   // of the instance; "" for a partition that is free
	Term int64  `json:"term"` // counts the times that the partition was taken
}

// canonical is a form in which equal lists of subjects are equal.
func canonical(subjects []convergo.Subject) string {
	return strings.Join(Layout{Prefix: "ev"}.Filters(subjects, "*"), " ")
}

// widened is the subjects with those of more that they do not cover.
func widened(subjects, more []convergo.Subject) []convergo.Subject {
	all := slices.Clone(subjects)
	for _, m := range more {
		if !slices.ContainsFunc(all, func(s convergo.Subject) bool { return s.Covers(m.Topic, m.Type) }) {
			all = append(all, m)
		}
	}
	return all
}

func (d document) clone() document {
	d.Members = maps.Clone(d.Members)
	if d.Members == nil {
		d.Members = map[string]member{}
	}
	d.Owners = slices.Clone(d.Owners)
	return d
}

// active are the instances that may read, sorted.
func (d document) active() []string {
	want := canonical(d.Subjects)
	var ids []string
	for id, m := range d.Members {
		if m.Subjects == want {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// assign is who should have each partition: as many each, one more or less. Every instance comes to the same answer.
func assign(partitions int, active []string) []string {
	want := make([]string, partitions)
	for n := range want {
		if len(active) > 0 {
			want[n] = active[n%len(active)]
		}
	}
	return want
}

func (b *Broker) readDocument(ctx context.Context, consumer string) (d document, revision uint64, err error) {
	revision, err = b.read(ctx, consumer+"."+groupKey, &d)
	return d, revision, err
}

// position is how far a consumer has come in a partition.
type position struct {
	Seq uint64 `json:"seq"` // of the stream: everything of the partition up to it is done with
	At  int64  `json:"at"`  // when the server stored the message of that sequence, in nanoseconds
	// Stream is when the stream was made: a sequence means nothing in another one of the same name.
	Stream int64 `json:"stream"`
	// By is who writes it, and ends when he gives the partition back; so that one who takes it knows whether the last one died.
	By string `json:"by"`
	// Deaths is how many died since Seq was reached.
	Deaths int `json:"deaths"`
}

func positionKey(consumer string, n int) string { return fmt.Sprintf("%s.%d", consumer, n) }

func (b *Broker) readPosition(ctx context.Context, consumer string, n int) (p position, revision uint64, err error) {
	revision, err = b.read(ctx, positionKey(consumer, n), &p)
	return p, revision, err
}

// read gets a value; a key that is not there has revision 0. A replica that lags may answer with an old value: a write against
// its revision fails then.
func (b *Broker) read(ctx context.Context, key string, value any) (revision uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.patience())
	defer cancel()
	entry, err := b.bucket.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", key, err)
	}
	if err := json.Unmarshal(entry.Value(), value); err != nil {
		return 0, fmt.Errorf("bucket %s, key %s: %w", b.bucket.Bucket(), key, err)
	}
	return entry.Revision(), nil
}

var errConflict = errors.New("another instance has written in between")

// write stores a value if the key still has that revision; otherwise errConflict. After another error it may be stored or not.
func (b *Broker) write(ctx context.Context, key string, value any, revision uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, b.patience())
	defer cancel()
	text, err := json.Marshal(value)
	if err != nil {
		return 0, err
	}
	var now uint64
	if revision == 0 {
		now, err = b.bucket.Create(ctx, key, text)
	} else {
		now, err = b.bucket.Update(ctx, key, text, revision)
	}
	switch {
	case errors.Is(err, jetstream.ErrKeyExists), errors.Is(err, jetstream.ErrKeyRevisionMismatch):
		return 0, errConflict
	case err != nil:
		return 0, fmt.Errorf("write %s: %w", key, err)
	}
	return now, nil
}

// sighting is a member's last sign of life, by our clock.
type sighting struct {
	beat int64
	at   time.Time
}
