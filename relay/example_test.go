package relay_test

import (
	"context"
	"fmt"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/memory"
)

// printer is a broker that prints. It confirms everything.
type printer chan struct{}

func (p printer) Publish(_ context.Context, events []convergo.Event) []error {
	for _, e := range events {
		fmt.Printf("%s %s\n", e.Key, e.Payload)
		p <- struct{}{}
	}
	return make([]error, len(events))
}

// A relay carries what was committed to a broker, in order per aggregate.
func Example() {
	store, broker := memory.New(), make(printer, 3)
	r := relay.New(store, broker, relay.Config{})
	store.OnEvents(r.Wake) // so that an event need not wait for the next poll

	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()

	box := outbox.New(store, outbox.Config{})
	order := convergo.Aggregate{Type: "order", ID: "O-17"}
	err := store.Update(ctx, func(ctx context.Context, tx *memory.Tx) error {
		return box.Add(ctx, tx,
			convergo.Event{Type: "OrderCreated", Topic: "order", Aggregate: order, Version: 1, Payload: []byte(`{"amount":"8800"}`)},
			convergo.Event{Type: "OrderPaid", Topic: "order", Aggregate: order, Version: 2, Payload: []byte(`{"channel":"wechat"}`)},
			convergo.Event{Type: "OrderShipped", Topic: "order", Aggregate: order, Version: 3, Payload: []byte(`{"parcel":"P-1"}`)},
		)
	})
	if err != nil {
		fmt.Println(err)
	}
	for range 3 {
		<-broker
	}
	stop()
	fmt.Println("stopped:", <-done, "sent:", r.Stats().Sent)
	// Output:
	// OrderCreated:O-17:v1 {"amount":"8800"}
	// OrderPaid:O-17:v2 {"channel":"wechat"}
	// OrderShipped:O-17:v3 {"parcel":"P-1"}
	// stopped: <nil> sent: 3
}
