package outbox_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/store/memory"
)

// An event is added in the transaction that makes it true.
func Example() {
	ctx := context.Background()
	store := memory.New()
	box := outbox.New(store, outbox.Config{})

	pay := func(ctx context.Context, tx *memory.Tx) error {
		tx.Set("paid O-17", 1) // the business change
		return box.Add(ctx, tx, convergo.Event{
			Type: "OrderPaid", Topic: "order", Aggregate: convergo.Aggregate{Type: "order", ID: "O-17"}, Version: 2,
			Payload: []byte(`{"no":"O-17","amount":"8800"}`),
		})
	}
	fmt.Println("first:", store.Update(ctx, pay))

	// The same fact told twice is refused, and the business change with it.
	err := store.Update(ctx, pay)
	fmt.Println("again:", errors.Is(err, outbox.ErrDuplicate))
	fmt.Println(err)
	// Output:
	// first: <nil>
	// again: true
	// duplicate event key: the outbox already has "OrderPaid:O-17:v2"; roll back, or use AddOnce when that is no fault
}

// AddOnce is for facts that several paths may tell, such as a notice that arrives eight times.
func ExampleOutbox_AddOnce() {
	store := memory.New()
	box := outbox.New(store, outbox.Config{})
	for range 2 {
		_ = store.Update(context.Background(), func(ctx context.Context, tx *memory.Tx) error {
			added, err := box.AddOnce(ctx, tx, convergo.Event{
				Key: "RECEIPT:wechat:4200001", Type: "ReceiptRecorded", Topic: "payment",
				Aggregate: convergo.Aggregate{Type: "receipt", ID: "wechat:4200001"},
			})
			fmt.Println(added, err)
			return err
		})
	}
	// Output:
	// 1 <nil>
	// 0 <nil>
}
