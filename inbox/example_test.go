package inbox_test

import (
	"context"
	"fmt"

	"github.com/convergo/convergo"
	broker "github.com/convergo/convergo/broker/memory"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/store/memory"
)

// An order is paid, the broker delivers the event twice, and its customer gets his points once.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	store, b := memory.New(), broker.New(broker.Config{})
	source, err := b.Subscribe(ctx, "points", []convergo.Subject{{Topic: "order", Type: "OrderPaid"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	twice := make(chan struct{}, 2)
	consumer := inbox.New(store, store, source, inbox.Config{Consumer: "points", Batch: 1, Probe: func(point string) {
		if point == "inbox.acked" {
			twice <- struct{}{}
		}
	}})
	consumer.Handle("OrderPaid", func(_ context.Context, tx *memory.Tx, e convergo.Event) error {
		tx.Add("points of "+e.Aggregate.ID, 12)
		return nil
	})
	stopped := make(chan error)
	go func() { stopped <- consumer.Run(ctx) }()

	paid := convergo.Event{
		Key: "OrderPaid:O-1:v2", MessageID: "m-1", Type: "OrderPaid", Topic: "order",
		Aggregate: convergo.Aggregate{Type: "order", ID: "O-1"}, Version: 2, Payload: []byte(`{"order_no":"O-1"}`),
	}
	b.DeliverTwice(1)
	fmt.Println("published:", b.Publish(ctx, []convergo.Event{paid})[0] == nil)
	<-twice
	<-twice
	stop()
	fmt.Println("stopped:", <-stopped)
	_ = store.View(context.Background(), func(_ context.Context, tx *memory.Tx) error {
		fmt.Println("points:", tx.Get("points of O-1"), "applied:", consumer.Stats().Applied, "duplicates:", consumer.Stats().Duplicates)
		return nil
	})
	// Output:
	// published: true
	// stopped: <nil>
	// points: 12 applied: 1 duplicates: 1
}
