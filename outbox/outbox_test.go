package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/memory"
)

func paid(order string, version int64) convergo.Event {
	return convergo.Event{
		Type: "OrderPaid", Topic: "order", Aggregate: convergo.Aggregate{Type: "order", ID: order}, Version: version,
		Payload: []byte(`{"no":"` + order + `"}`),
	}
}

// pending is what a relay would find.
func pending(t *testing.T, store *memory.Store) []convergo.Event {
	t.Helper()
	ctx := t.Context()
	leases, err := store.Lease(ctx, relay.LeaseRequest{Owner: t.Name(), Term: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	claim, err := store.Claim(ctx, leases, 1000, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Release(ctx, t.Name(), leases); err != nil {
		t.Fatal(err)
	}
	events := make([]convergo.Event, len(claim.Events))
	for i, p := range claim.Events {
		events[i] = p.Event
	}
	return events
}

func keys(events []convergo.Event) string {
	var k []string
	for _, e := range events {
		k = append(k, string(e.Key))
	}
	slices.Sort(k)
	return strings.Join(k, " ")
}

func TestACommittedEventExistsAndARolledBackOneNeverDid(t *testing.T) {
	store := memory.New()
	box := outbox.New(store, outbox.Config{})
	woken := 0
	store.OnEvents(func() { woken++ })
	undo := errors.New("undo")
	err := store.Update(t.Context(), func(ctx context.Context, tx *memory.Tx) error {
		if err := box.Add(ctx, tx, paid("O-1", 1)); err != nil {
			t.Error(err)
		}
		return undo
	})
	if !errors.Is(err, undo) || keys(pending(t, store)) != "" || woken != 0 {
		t.Errorf("after a rollback: %v, events %q, %d wake-ups", err, keys(pending(t, store)), woken)
	}
	err = store.Update(t.Context(), func(ctx context.Context, tx *memory.Tx) error {
		return box.Add(ctx, tx, paid("O-1", 1), paid("O-2", 1))
	})
	if got := keys(pending(t, store)); err != nil || got != "OrderPaid:O-1:v1 OrderPaid:O-2:v1" || woken != 1 {
		t.Errorf("after a commit: %v, events %q, %d wake-ups", err, got, woken)
	}
}

func TestCaseB04ASavepointTakesItsEventAlong(t *testing.T) {
	store := memory.New()
	box := outbox.New(store, outbox.Config{})
	err := store.Update(t.Context(), func(ctx context.Context, tx *memory.Tx) error {
		err := store.Nested(ctx, tx, func(ctx context.Context, tx *memory.Tx) error {
			if err := box.Add(ctx, tx, paid("O-2", 1)); err != nil {
				t.Error(err)
			}
			return errors.New("undo")
		})
		if err == nil {
			t.Error("the savepoint did not fail")
		}
		return box.Add(ctx, tx, paid("O-3", 1))
	})
	if got := keys(pending(t, store)); err != nil || got != "OrderPaid:O-3:v1" {
		t.Errorf("%v, events %q, want O-3 only", err, got)
	}
}

func TestADuplicateKeyIsAnErrorThatNamesIt(t *testing.T) {
	store := memory.New()
	box := outbox.New(store, outbox.Config{})
	add := func(events ...convergo.Event) error {
		return store.Update(t.Context(), func(ctx context.Context, tx *memory.Tx) error { return box.Add(ctx, tx, events...) })
	}
	if err := add(paid("O-1", 1)); err != nil {
		t.Fatal(err)
	}
	for _, events := range [][]convergo.Event{{paid("O-9", 1), paid("O-1", 1)}, {paid("O-8", 1), paid("O-8", 1)}} {
		err := add(events...)
		want := fmt.Sprintf("%q", convergo.KeyFor("OrderPaid", events[1].Aggregate.ID, 1))
		if !errors.Is(err, outbox.ErrDuplicate) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want ErrDuplicate that names %s", err, want)
		}
	}
	if got := keys(pending(t, store)); got != "OrderPaid:O-1:v1" {
		t.Errorf("events %q, want the first only: the caller rolled the others back", got)
	}
}

func TestAddOnceSkipsWhatIsThereAndKeepsTheTransaction(t *testing.T) {
	store := memory.New()
	box := outbox.New(store, outbox.Config{})
	for i, want := range []int{2, 1, 0} {
		err := store.Update(t.Context(), func(ctx context.Context, tx *memory.Tx) error {
			added, err := box.AddOnce(ctx, tx, paid("O-1", 1), paid("O-2", int64(min(i, 1))))
			if added != want {
				t.Errorf("call %d added %d, want %d", i, added, want)
			}
			tx.Add("calls", 1)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := keys(pending(t, store)); got != "OrderPaid:O-1:v1 OrderPaid:O-2:v0 OrderPaid:O-2:v1" {
		t.Errorf("events %q", got)
	}
}

// counting is a store that only counts.
type counting struct {
	inserts int
	answer  []bool
	err     error
}

func (c *counting) Insert(_ context.Context, _ struct{}, events []convergo.Event) ([]bool, error) {
	c.inserts++
	return c.answer, c.err
}

func TestNothingReachesTheStoreWhenOneEventIsInvalid(t *testing.T) {
	store := &counting{}
	box := outbox.New(store, outbox.Config{})
	bad := paid("O-1", 1)
	bad.Topic = "no topic"
	err := box.Add(t.Context(), struct{}{}, paid("O-2", 1), bad)
	if !errors.Is(err, convergo.ErrInvalid) || !strings.Contains(err.Error(), "topic") {
		t.Errorf("%v, want an error about the topic", err)
	}
	if _, err := box.AddOnce(t.Context(), struct{}{}, bad); !errors.Is(err, convergo.ErrInvalid) {
		t.Error(err)
	}
	if err := box.Add(t.Context(), struct{}{}); err != nil {
		t.Errorf("adding nothing: %v", err)
	}
	if store.inserts != 0 {
		t.Errorf("%d inserts", store.inserts)
	}
}

// What the broker would refuse for good is the writer's error, in the transaction that it can still roll back.
func TestAnEventThatIsTooLargeForTheBrokerIsRefusedWhenItIsWritten(t *testing.T) {
	store := &counting{answer: []bool{true}}
	sized := func(payload int, headers map[string]string) convergo.Event {
		e := paid("O-1", 1)
		e.Payload, e.Headers = make([]byte, payload), headers
		return e
	}
	header := map[string]string{"Trace": "12345"} // 10 bytes, and 32 for what a broker puts around them
	for _, c := range []struct {
		limit, payload int
		headers        map[string]string
		fits           bool
	}{
		{1000, 1000, nil, true}, {1000, 1001, nil, false}, {1000, 958, header, true}, {1000, 959, header, false},
		{0, convergo.MaxPayloadBytes, header, true}, {-1, convergo.MaxPayloadBytes, header, true},
		{1 << 30, convergo.MaxPayloadBytes, header, true}, {1 << 30, convergo.MaxPayloadBytes + 1, nil, false},
	} {
		box := outbox.New(store, outbox.Config{MaxPayload: c.limit})
		err := box.Add(t.Context(), struct{}{}, sized(c.payload, c.headers))
		if _, once := box.AddOnce(t.Context(), struct{}{}, sized(c.payload, c.headers)); (once == nil) != (err == nil) {
			t.Errorf("AddOnce says %v, Add %v", once, err)
		}
		switch {
		case (err == nil) != c.fits:
			t.Errorf("%d of %d with %v: %v", c.payload, c.limit, c.headers, err)
		case err != nil && (!errors.Is(err, convergo.ErrInvalid) || errors.Is(err, outbox.ErrTooLarge) != (c.limit == 1000)):
			t.Errorf("%v", err)
		case err != nil && c.limit == 1000 && !strings.Contains(err.Error(), "together 1001 > 1000, what the broker takes (Config.MaxPayload)"):
			t.Errorf("%v names no limit", err)
		}
	}
}

func TestAStoreThatFailsOrAnswersWronglyIsAnError(t *testing.T) {
	down := errors.New("down")
	for _, store := range []*counting{{err: down}, {answer: []bool{true}}} {
		box := outbox.New(store, outbox.Config{})
		if err := box.Add(t.Context(), struct{}{}, paid("O-1", 1), paid("O-2", 1)); err == nil || store.err != nil && !errors.Is(err, down) {
			t.Errorf("%+v: %v", store, err)
		}
	}
}

func TestDefaultsAreFilledAndTheCallersEventIsNotChanged(t *testing.T) {
	store := memory.New()
	now := time.Date(2026, 11, 29, 20, 0, 0, 123_456_789, time.FixedZone("CST", 8*3600))
	box := outbox.New(store, outbox.Config{Now: func() time.Time { return now }})
	given := paid("O-1", 3)
	own := paid("O-2", 1)
	own.Key, own.MessageID, own.CreatedAt = "mine", "my-id", now.Add(-time.Hour)
	events := []convergo.Event{given, own}
	err := store.Update(t.Context(), func(ctx context.Context, tx *memory.Tx) error { return box.Add(ctx, tx, events...) })
	if err != nil {
		t.Fatal(err)
	}
	if events[0].Key != "" || events[0].MessageID != "" || !events[0].CreatedAt.IsZero() {
		t.Errorf("the caller's event became %+v", events[0])
	}
	for _, e := range pending(t, store) {
		switch e.Aggregate.ID {
		case "O-1":
			if want := now.UTC().Truncate(time.Microsecond); e.Key != "OrderPaid:O-1:v3" || e.CreatedAt != want || !uuid7.MatchString(e.MessageID) {
				t.Errorf("defaults: %+v, want created %v", e, want)
			}
		case "O-2":
			if e.Key != "mine" || e.MessageID != "my-id" || !e.CreatedAt.Equal(own.CreatedAt.Truncate(time.Microsecond)) {
				t.Errorf("what was set became %+v", e)
			}
		}
	}
}

// Kept as delayed, it would join its lane after what was added later.
func TestAnEventWhoseTimeHasComeKeepsItsPlace(t *testing.T) {
	store := memory.New()
	now := time.Now()
	box := outbox.New(store, outbox.Config{Now: func() time.Time { return now }})
	past, present := paid("O-1", 1), paid("O-1", 2)
	past.DeliverAt, present.DeliverAt = now.Add(-time.Hour), now
	err := store.Update(t.Context(), func(ctx context.Context, tx *memory.Tx) error {
		return box.Add(ctx, tx, past, present, paid("O-1", 3))
	})
	if err != nil {
		t.Fatal(err)
	}
	var versions []int64
	for _, e := range pending(t, store) {
		versions = append(versions, e.Version)
	}
	if !slices.Equal(versions, []int64{1, 2, 3}) {
		t.Errorf("versions %v, want them in the order of Add", versions)
	}
}

var uuid7 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// ids adds n events and returns their message ids in order.
func ids(t *testing.T, box *outbox.Outbox[*memory.Tx], store *memory.Store, order string, n int) []string {
	t.Helper()
	var added []convergo.Event
	for v := range n {
		added = append(added, paid(order, int64(v)))
	}
	if err := store.Update(t.Context(), func(ctx context.Context, tx *memory.Tx) error { return box.Add(ctx, tx, added...) }); err != nil {
		t.Error(err)
	}
	var list []string
	for _, e := range pending(t, store) {
		if e.Aggregate.ID == order {
			list = append(list, e.MessageID)
		}
	}
	return list
}

func TestMessageIDsGrowAlsoWhenTheClockStandsOrStepsBack(t *testing.T) {
	now := time.UnixMilli(1_795_000_000_123)
	store := memory.New()
	box := outbox.New(store, outbox.Config{Now: func() time.Time { return now }})
	all := ids(t, box, store, "O-1", 500)
	now = now.Add(-time.Hour)
	all = append(all, ids(t, box, store, "O-2", 500)...)
	now = now.Add(2 * time.Hour)
	all = append(all, ids(t, box, store, "O-3", 1)...)
	if !slices.IsSorted(all) || len(slices.Compact(slices.Clone(all))) != 1001 {
		t.Error("the ids do not grow from event to event")
	}
	for _, id := range all {
		if !uuid7.MatchString(id) {
			t.Fatalf("%s is no UUIDv7", id)
		}
	}
	if want := fmt.Sprintf("%012x", 1_795_000_000_123); strings.ReplaceAll(all[0][:13], "-", "") != want {
		t.Errorf("%s does not begin with the milliseconds %s", all[0], want)
	}
}

func TestMessageIDsOfManyWritersDiffer(t *testing.T) {
	store := memory.New()
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for w := range 8 {
		box := outbox.New(store, outbox.Config{}) // one each, as in several processes
		wg.Go(func() {
			var events []convergo.Event
			for v := range 200 {
				events = append(events, paid(fmt.Sprint("O-", w), int64(v)))
			}
			if err := store.Update(t.Context(), func(ctx context.Context, tx *memory.Tx) error { return box.Add(ctx, tx, events...) }); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, e := range pending(t, store) {
		mu.Lock()
		seen[e.MessageID] = true
		mu.Unlock()
	}
	if len(seen) != 1600 {
		t.Errorf("%d different ids of 1600", len(seen))
	}
}

func BenchmarkAdd(b *testing.B) {
	box := outbox.New(&counting{answer: []bool{true}}, outbox.Config{})
	e := paid("O-1", 1)
	b.ReportAllocs()
	for b.Loop() {
		if err := box.Add(b.Context(), struct{}{}, e); err != nil {
			b.Fatal(err)
		}
	}
}
