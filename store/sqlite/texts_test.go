package sqlite_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/sqlite"
)

// A claim reads an event's texts as one, between separators. Whatever a foreign writer puts into them comes out the same.
func TestTextsComeOutAsTheyWentInWhateverIsInThem(t *testing.T) {
	s := open(t, sqlite.Options{Relaxed: true})
	want := []convergo.Event{
		{Topic: "order", Type: "Plain", Aggregate: convergo.Aggregate{Type: "order", ID: "1"}, MessageID: "m", Key: "k-0"},
		{Topic: "a\x1fb", Type: "Separator", Aggregate: convergo.Aggregate{Type: "order", ID: "2"}, MessageID: "m", Key: "k-1"},
		{Topic: "order", Type: "All", Aggregate: convergo.Aggregate{Type: "\x1f", ID: "\x1f\x1f"}, MessageID: "\x1f", Key: "\x1fk-2"},
		{Topic: "order", Type: "Emoji\x00\xff", Aggregate: convergo.Aggregate{Type: "order", ID: "é🙂"}, MessageID: "m", Key: "k-3", Headers: map[string]string{"A": "\x1f"}},
		{Topic: "order", Type: "Last", Aggregate: convergo.Aggregate{Type: "order", ID: "5"}, MessageID: "m", Key: "k-4", Payload: []byte{0x1f}},
	}
	for i := range want {
		want[i].CreatedAt = time.UnixMicro(int64(i) + 1).UTC()
		if want[i].Payload == nil {
			want[i].Payload = []byte{}
		}
	}
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		_, err := s.Insert(ctx, tx, want)
		return err
	}))
	leases, err := s.Lease(t.Context(), relay.LeaseRequest{Owner: "r", Term: time.Minute})
	must(t, err)
	c, err := s.Claim(t.Context(), leases, 10, time.Now())
	must(t, err)
	got := map[convergo.Key]string{}
	for _, p := range c.Events {
		got[p.Event.Key] = fmt.Sprintf("%+v", p.Event)
	}
	for _, e := range want {
		same(t, string(e.Key), got[e.Key], fmt.Sprintf("%+v", e))
	}
}
