package memory_test

import (
	"context"
	"testing"

	"github.com/convergo/convergo/store/memory"
	"github.com/convergo/convergo/store/storetest"
)

func TestTheMemoryStoreObeysTheLaws(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Backend[*memory.Tx] {
		s := memory.New()
		return storetest.Backend[*memory.Tx]{
			Store: s, Outbox: s, Relay: s, Inbox: s, Parking: s, Outside: s.Calls(), Requests: s,
			Add: func(_ context.Context, tx *memory.Tx, name string, n int) error {
				tx.Add(name, n)
				return nil
			},
			Value: func(ctx context.Context, name string) (n int, err error) {
				err = s.View(ctx, func(_ context.Context, tx *memory.Tx) error {
					n = tx.Get(name)
					return nil
				})
				return n, err
			},
			ExpireLeases: s.ExpireLeases, OnEvents: s.OnEvents, OnCalls: s.OnCalls,
		}
	})
}
