package rocketmq

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// outage makes a database go away and come back: its server is killed, or its file is locked by another program.
func outage(t *testing.T, on kind, address string) (away, back func() error) {
	t.Helper()
	switch on.name {
	case "sqlite":
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
		return func() (err error) {
			lock, err = other.BeginTx(context.Background(), nil)
			return err
		}, func() error { return lock.Rollback() }
	case "postgres":
		server := sharedPostgres(t)
		return server.Kill, func() error { return errors.Join(server.Start(), server.Ready()) }
	default:
		server := sharedMySQL(t, on.name)
		return server.Kill, server.Restart
	}
}

func TestAQuestionWhileTheDatabaseIsAwayIsNotAnsweredAndAskedAgain(t *testing.T) {
	aloneOnEachDatabase(t, func(t *testing.T, on kind) { // it kills the servers that the tests share
		address := on.fresh(t)
		var halves atomic.Int64
		r := newRigOn(t, on, address, TransactionalConfig{AnswerTimeout: 500 * time.Millisecond, Probe: func(point string) {
			if point == "transaction.half" && halves.Add(1) == 1 || point == "transaction.committed" {
				runtime.Goexit()
			}
		}})
		dying(func() { // before its transaction
			t.Errorf("it did not die: %v", r.Send(context.Background(), paid("O-1", 1), r.pay("O-1")))
		})
		r.commitsAndDies("O-2")
		away, back := outage(t, on, address)
		if err := away(); err != nil {
			t.Fatal(err)
		}
		back = sync.OnceValue(back)
		t.Cleanup(func() { _ = back() }) // for the other tests, however this one ends
		eventually(t, "two questions that are not answered", func() bool { return r.unanswered("O-1") && r.unanswered("O-2") })
		if err := back(); err != nil {
			t.Fatal(err)
		}
		r.comes("O-2")
		eventually(t, "what had not committed is decided to be rolled back", func() bool { return r.decided(rollback) > 0 })
		if r.isPaid("O-1") || !r.isPaid("O-2") || r.decided(commit) != 1 {
			t.Error("the decisions are not what was committed")
		}
		r.nothing(2 * time.Second)
	})
}
