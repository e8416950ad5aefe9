package sqlite

import (
	"github.com/convergo/convergo"
	"github.com/convergo/convergo/idempotency"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/relay"
)

// The contracts that the store keeps.
var (
	_ outbox.Store[convergo.Tx]      = (*Store)(nil)
	_ relay.Store                    = (*Store)(nil)
	_ inbox.Store[convergo.Tx]       = (*Store)(nil)
	_ inbox.Parking[convergo.Tx]     = (*Store)(nil)
	_ inbox.Notes[convergo.Tx]       = (*Store)(nil)
	_ outside.Store[convergo.Tx]     = Calls{}
	_ idempotency.Store[convergo.Tx] = (*Store)(nil)
	_ ops.Store                      = (*Store)(nil)
	_ convergo.Tx                    = (*Tx)(nil)
	_ convergo.AfterCommit           = (*Tx)(nil)
)
