package outside_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/store/memory"
)

// A text message is sent by a provider that accepts it and then does not answer in time. The provider is asked, knows
// the key, and the customer gets one message.
func Example() {
	store := memory.New().Calls()
	calls := outside.New[*memory.Tx](store, outside.Config{Backoff: convergo.Backoff{Base: time.Millisecond}})
	sent := map[convergo.Key]bool{} // the provider's memory
	done := make(chan struct{})
	calls.Handle("sms.send", outside.Handler[*memory.Tx]{
		Do: func(_ context.Context, c outside.Claimed) ([]byte, error) {
			fmt.Printf("send %q, key %s\n", c.Payload, c.Key)
			sent[c.Key] = true
			return nil, errors.New("no answer in time")
		},
		Query: func(_ context.Context, c outside.Claimed) ([]byte, bool, error) {
			fmt.Println("ask about", c.Key)
			return []byte("sms-4711"), sent[c.Key], nil
		},
		Done: func(_ context.Context, tx *memory.Tx, c outside.Claimed, result []byte) error {
			tx.Add("messages", 1)
			fmt.Printf("%s is %s\n", c.Key, result)
			tx.AfterCommit(func() { close(done) })
			return nil
		},
	})

	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- calls.Run(ctx) }()
	err := store.Update(ctx, func(ctx context.Context, tx *memory.Tx) error {
		_, err := calls.Schedule(ctx, tx, outside.Call{Kind: "sms.send", Key: "PAID:O-1", Payload: []byte("your order is paid")})
		return err
	})
	if err != nil {
		fmt.Println(err)
	}
	<-done
	stop()
	fmt.Println(<-stopped)
	// Output:
	// send "your order is paid", key PAID:O-1
	// ask about PAID:O-1
	// PAID:O-1 is sms-4711
	// <nil>
}
