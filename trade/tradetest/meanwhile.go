package tradetest

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/convergo/convergo"
)

// Meanwhile delivers e, and runs do once in the middle of the handler: after its first query that contains look. So it is seen
// what becomes of a handler that has looked when another process commits something before it acts. The database locks rows
// (Database.Locks); SQLite has one writer, and do would wait for this one.
func (b *Bench) Meanwhile(e convergo.Event, look string, do func()) error {
	b.T.Helper()
	h, met := b.Service.Handlers()[e.Type], false
	err := b.Store.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
		return h(ctx, &pausing{Tx: tx, after: func(query string) {
			if !met && strings.Contains(query, look) {
				met = true
				do()
			}
		}}, e)
	})
	if !met {
		b.T.Fatalf("the handler of %s asked nothing that contains %q", e.Type, look)
	}
	return err
}

// pausing is a transaction that tells of each query before its rows are handed out.
type pausing struct {
	convergo.Tx
	after func(query string)
}

// QueryContext implements convergo.Tx.
func (p *pausing) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	rows, err := p.Tx.QueryContext(ctx, query, args...)
	p.after(query)
	return rows, err
}

// QueryRowContext implements convergo.Tx.
func (p *pausing) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	row := p.Tx.QueryRowContext(ctx, query, args...)
	p.after(query)
	return row
}

// AfterCommit implements convergo.AfterCommit.
func (p *pausing) AfterCommit(f func()) {
	if inner, ok := p.Tx.(convergo.AfterCommit); ok {
		inner.AfterCommit(f)
	}
}

// Twin is another process of the same service on the same database: its own service and routes, nothing shared in memory.
func (b *Bench) Twin() *Bench {
	b.T.Helper()
	twin := &Bench{T: b.T, Clock: b.Clock, Store: b.Store, Deps: b.Deps, build: b.build, public: b.public}
	var err error
	if twin.Service, err = b.build(twin.Deps); err != nil {
		b.T.Fatal(err)
	}
	twin.Handler = twin.handler()
	return twin
}

var _ convergo.AfterCommit = (*pausing)(nil)

// Beside runs do on a goroutine of its own and returns when it has ended, or after a moment, for as a rule it has to wait for a row that
// the caller's transaction has taken. wait waits for its end: call it when that transaction is over.
func Beside(do func()) (wait func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		do()
	}()
	select {
	case <-ended:
	case <-time.After(200 * time.Millisecond):
	}
	return func() { <-ended }
}
