package rocketmq

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo/testserver"
)

// outage is a database that can go away and come back.
type outage struct {
	kind       kind
	address    string
	away, back func() error
}

// outages are of the kinds of databases. Servers are killed; a file is locked by another program.
func outages() map[string]func(t *testing.T, on kind) outage {
	onMySQL := func(open func() (*testserver.MySQL, error)) func(t *testing.T, on kind) outage {
		return func(t *testing.T, on kind) outage {
			server := testserver.Own(t, open)
			return outage{on, freshMySQL(t, server), server.Kill, server.Restart}
		}
	}
	return map[string]func(t *testing.T, on kind) outage{
		"sqlite": func(t *testing.T, on kind) outage {
			address := freshSQLite(t)
			other, err := sql.Open("sqlite", "file:"+address+"?_txlock=immediate")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := other.Close(); err != nil {
					t.Error(err)
				}
			})
			var lock *sql.Tx
			return outage{on, address, func() (err error) {
				lock, err = other.BeginTx(context.Background(), nil)
				return err
			}, func() error { return lock.Rollback() }}
		},
		"postgres": func(t *testing.T, on kind) outage {
			server := testserver.Own(t, testserver.OpenDefaultPostgres)
			return outage{on, freshPostgres(t, server), server.Kill, func() error { return errors.Join(server.Start(), server.Ready()) }}
		},
		"mariadb": onMySQL(testserver.OpenMariaDB),
		"mysql":   onMySQL(testserver.OpenMySQL),
	}
}

func TestAQuestionWhileTheDatabaseIsAwayIsNotAnsweredAndAskedAgain(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, on kind) {
		o := outages()[on.name](t, on)
		var halves atomic.Int64
		r := newRigOn(t, on, o.address, TransactionalConfig{AnswerTimeout: time.Second, Probe: func(point string) {
			if point == "transaction.half" && halves.Add(1) == 1 || point == "transaction.committed" {
				runtime.Goexit()
			}
		}})
		for _, order := range []string{"O-1", "O-2"} { // the first dies before its transaction, the second after
			dying(func() {
				_ = r.Send(context.Background(), paid(order, 1), r.pay(order))
				t.Error("it did not die")
			})
		}
		if err := o.away(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "two questions that are not answered", func() bool { return r.unanswered() >= 2 })
		if err := o.back(); err != nil {
			t.Fatal(err)
		}
		r.comes("O-2")
		eventually(t, "what had not committed is decided to be rolled back", func() bool { return r.decided(rollback) == 1 })
		if r.isPaid("O-1") || !r.isPaid("O-2") || r.decided(commit) != 1 {
			t.Error("the decisions are not what was committed")
		}
		r.nothing(2 * time.Second)
	})
}
