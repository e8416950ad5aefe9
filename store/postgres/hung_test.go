package postgres_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo/store/postgres"
	"github.com/convergo/convergo/store/storetest"
	"github.com/convergo/convergo/testserver"
)

// A server whose processes are stopped keeps its connections and says nothing.
func TestAServerThatStandsStillHangsNobody(t *testing.T) {
	server := testserver.Own(t, testserver.OpenDefaultPostgres)
	var next atomic.Pointer[func()]
	opts := postgres.Options{Name: "hung", Schema: "hung", CommitTimeout: 1500 * time.Millisecond, Probe: func(at string) {
		if at == "hung.commit.before" {
			if f := next.Swap(nil); f != nil {
				(*f)()
			}
		}
	}}
	storetest.RunHung(t, backend(t, server.DSN("postgres"), opts), storetest.HungServer{
		Pause: server.Pause, Resume: server.Resume, AtCommit: func(f func()) { next.Store(&f) }, Commit: opts.CommitTimeout,
	})
}
