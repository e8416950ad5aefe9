package rocketmq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
)

// victimJob in the environment makes a test binary a service's process that is killed while it sends a transactional message.
const victimJob = "CONVERGO_ROCKETMQ_VICTIM"

// insideTheTransaction is where a victim dies after its local transaction has written, and before it commits.
const insideTheTransaction = "inside the transaction"

// victim is what its process is told.
type victim struct {
	Kind, Address               string // of its database
	NameServer, Cluster, Prefix string
	LockTerm                    time.Duration
	Order                       string
	Dies                        string // a point of Transactional's probe, or insideTheTransaction
}

// victimChild makes this process a victim if it was started as one, and does not return then.
func victimChild() {
	text := os.Getenv(victimJob)
	if text == "" {
		return
	}
	var v victim
	err := json.Unmarshal([]byte(text), &v)
	if err == nil {
		err = v.live()
	}
	fmt.Fprintln(os.Stderr, "it was not killed:", err)
	os.Exit(1)
}

func (v victim) live() error {
	die := func(point string) {
		if point != v.Dies {
			return
		}
		if self, err := os.FindProcess(os.Getpid()); err == nil && self.Kill() == nil {
			select {}
		}
	}
	ctx := context.Background()
	for _, on := range kinds() {
		if on.name != v.Kind {
			continue
		}
		db, err := on.open(ctx, v.Address)
		if err != nil {
			return err
		}
		b, err := Open(ctx, Config{NameServers: []string{v.NameServer}, Cluster: v.Cluster, Prefix: v.Prefix, LockTerm: v.LockTerm})
		if err != nil {
			return err
		}
		cfg := TransactionalConfig{Group: "order", Probe: die}
		t, err := NewTransactional(ctx, b, db, outbox.New[convergo.Tx](db, outbox.Config{}), cfg)
		if err != nil {
			return err
		}
		err = t.Send(ctx, paid(v.Order, 1), func(ctx context.Context, tx convergo.Tx) error {
			err := pay(ctx, tx, v.Order)
			die(insideTheTransaction)
			return err
		})
		if errors.Is(err, ErrRolledBack) { // the broker's question was quicker than a busy machine
			die(v.Dies)
		}
		return err
	}
	return fmt.Errorf("no database of the kind %s", v.Kind)
}

// killed has another process of the rig's group send an event and be killed on the way.
func (r *rig) killed(order, dies string) {
	r.t.Helper()
	cfg := r.broker.cfg
	text, err := json.Marshal(victim{r.on.name, r.address, cfg.NameServers[0], cfg.Cluster, cfg.Prefix, cfg.LockTerm, order, dies})
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.CommandContext(r.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), victimJob+"="+string(text))
	said, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.Exited() {
		r.t.Fatalf("the process was not killed: %v\n%s", err, said)
	}
}

func TestAHalfMessageOfADeadProcessIsAnsweredByAnotherInstance(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, on kind) {
		r := newRig(t, on, TransactionalConfig{})
		for tries := 0; !r.isPaid("O-1"); tries++ { // unless the broker's question was quicker than a busy machine
			if tries == 10 {
				t.Fatal("the local transaction has not committed")
			}
			r.killed("O-1", "transaction.committed")
		}
		earlier := r.decided(rollback)
		r.killed("O-2", insideTheTransaction)
		r.killed("O-3", "transaction.half")
		r.comes("O-1")
		eventually(t, "both that had not committed are decided to be rolled back", func() bool { return r.decided(rollback) == earlier+2 })
		eventually(t, "the outbox has nothing to send", func() bool { return r.count("SELECT COUNT(*) FROM outbox_delayed") == 0 })
		if r.isPaid("O-2") || r.isPaid("O-3") || r.decided(commit) != 1 || r.count("SELECT COUNT(*) FROM outbox_event") != 1 {
			t.Error("something of a transaction that had not committed was kept")
		}
		r.nothing(2 * time.Second)
	})
}
