package check_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo/drill"
	"github.com/convergo/convergo/drill/check"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/channel"
	"github.com/convergo/convergo/trade/coupon"
	"github.com/convergo/convergo/trade/inventory"
	"github.com/convergo/convergo/trade/ledger"
	"github.com/convergo/convergo/trade/notification"
	"github.com/convergo/convergo/trade/order"
	"github.com/convergo/convergo/trade/payment"
	"github.com/convergo/convergo/trade/points"
	"github.com/convergo/convergo/trade/risk"
	"github.com/convergo/convergo/trade/shipping"
	"github.com/convergo/convergo/trade/tradetest"
)

func TestTheSubscriptionsAreWhatTheServicesHandle(t *testing.T) {
	secret, err := channel.ParseSecret("whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 32)))
	if err != nil {
		t.Fatal(err)
	}
	builders := []func(trade.Deps) (trade.Service, error){
		func(d trade.Deps) (trade.Service, error) {
			return order.New(d, order.Config{TokenSecret: []byte(strings.Repeat("s", 32))})
		},
		func(d trade.Deps) (trade.Service, error) {
			standard := payment.Channel{Merchant: "m", Secrets: []channel.Secret{secret}, API: &channel.Client{}}
			return payment.New(d, payment.Config{Channels: map[string]payment.Channel{"standard": standard}})
		},
		func(d trade.Deps) (trade.Service, error) { return inventory.New(d) },
		func(d trade.Deps) (trade.Service, error) { return coupon.New(d) },
		func(d trade.Deps) (trade.Service, error) { return points.New(d) },
		func(d trade.Deps) (trade.Service, error) {
			return shipping.New(d, shipping.Config{Carrier: &shipping.HTTPCarrier{}})
		},
		func(d trade.Deps) (trade.Service, error) { return ledger.New(d) },
		func(d trade.Deps) (trade.Service, error) {
			return notification.New(d, notification.Config{Messenger: &notification.HTTPMessenger{}})
		},
		func(d trade.Deps) (trade.Service, error) { return risk.New(d, risk.Config{}) },
	}
	want := map[string][]string{}
	for _, build := range builders {
		service := tradetest.New(t, build).Service
		want[service.Name()] = slices.Sorted(maps.Keys(service.Handlers()))
	}
	got := check.Subscriptions()
	for name, types := range want {
		if !slices.Equal(got[name], types) {
			t.Errorf("%s handles\n%v, the checker expects\n%v", name, types, got[name])
		}
	}
	if len(got) != len(want) || len(got) != len(check.Services()) {
		t.Errorf("%d services subscribe, %d exist, the checker opens %d", len(got), len(want), len(check.Services()))
	}
}

func TestAFolderThatIsNoPlatformIsRefusedWithTheFileThatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(dir string) error
		want   []string
	}{
		"no folder":      {os.RemoveAll, []string{"order.db", "a whole platform has one file per service"}},
		"a file missing": {func(dir string) error { return os.Remove(filepath.Join(dir, "risk.db")) }, []string{"risk.db"}},
		"no world":       {func(dir string) error { return os.Remove(filepath.Join(dir, "world.db")) }, []string{"world.db"}},
		"no database": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "points.db"), []byte(strings.Repeat("no database ", 100)), 0o600)
		}, []string{"points.db", "not a database"}},
		"no tables": {func(dir string) error { return os.WriteFile(filepath.Join(dir, "coupon.db"), nil, 0o600) }, []string{"coupon.db", "no tables"}},
		"a directory": {func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "coupon.db")), os.Mkdir(filepath.Join(dir, "coupon.db"), 0o700))
		}, []string{"coupon.db"}},
		"the tables of another program": {func(dir string) error {
			text, err := os.ReadFile(filepath.Join(dir, "world.db"))
			return errors.Join(err, os.WriteFile(filepath.Join(dir, "order.db"), text, 0o600))
		}, []string{"order"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copyOfDay(t)
			if err := c.damage(dir); err != nil {
				t.Fatal(err)
			}
			equations, err := tryCheck(t.Context(), dir)
			if err == nil || equations != nil {
				t.Fatalf("%d equations, error %v", len(equations), err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

// files of the folder with their contents' digests.
func files(t *testing.T, dir string) map[string][32]byte {
	t.Helper()
	found := map[string][32]byte{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		found[path] = sha256.Sum256(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestACheckOfAStoppedPlatformChangesNoFile(t *testing.T) {
	dir := copyOfDay(t)
	before := files(t, dir)
	checked(t, dir)
	if after := files(t, dir); !maps.Equal(before, after) {
		t.Errorf("%d files before, %d after, or another content", len(before), len(after))
	}
}

func TestACheckSeesWhatAKilledPlatformHasCommittedAndLeavesItsFiles(t *testing.T) {
	running, dir := copyOfDay(t), t.TempDir()
	conn := attached(t, running)
	if _, err := conn.ExecContext(t.Context(), `UPDATE "order".orders SET status = 'PAID' WHERE order_no = (`+done+`)`); err != nil {
		t.Fatal(err)
	}
	// The connection is open, so what it wrote is in the WAL. A copy of the files is what a SIGKILL leaves.
	for path := range files(t, running) {
		text, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(path)), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "order.db-wal")); err != nil {
		t.Fatalf("the damage is not in a WAL: %v", err)
	}
	before := files(t, dir)
	if b := broken(checked(t, dir)); !strings.Contains(b, history) {
		t.Errorf("what stands in the WAL was not seen; broken are:\n%s", b)
	}
	for path, digest := range files(t, dir) {
		if was, there := before[path]; !strings.HasSuffix(path, "-shm") && (!there || was != digest) {
			t.Errorf("%s was changed", filepath.Base(path))
		}
	}
}

func TestARunningPlatformIsCheckedWhileItRuns(t *testing.T) {
	from, err := day()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(from, "data"))); err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	platform := &drill.Child{
		Program: filepath.Join(from, "convergo"), URL: "http://" + address, Args: []string{"serve", "--data", dir, "--addr", address, "--log", "warn"},
	}
	if err := platform.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := check.Open(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}
	equations, err := c.Settled(t.Context(), 20*time.Second)
	if err != nil || broken(equations) != "" {
		t.Errorf("%v\n%s", err, broken(equations))
	}
	if err := errors.Join(c.Close(), platform.Stop(30*time.Second)); err != nil {
		t.Error(err)
	}
	if b := broken(checked(t, dir)); b != "" {
		t.Errorf("after it was stopped:\n%s", b)
	}
}

func TestABreakThatHealsWithinTheTimeDoesNotCount(t *testing.T) {
	dir := copyOfDay(t)
	conn := attached(t, dir)
	exec := func(query string) {
		t.Helper()
		if _, err := conn.ExecContext(t.Context(), query); err != nil {
			t.Error(err)
		}
	}
	exec(`UPDATE points.points_account SET balance = balance + 1 WHERE user_id = 'member-01'`)
	c, err := check.Open(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	looks := 0
	c.Now = func() time.Time {
		if looks++; looks == 4 { // the second run has begun
			exec(`UPDATE points.points_account SET balance = balance - 1 WHERE user_id = 'member-01'`)
		}
		return time.Now()
	}
	equations, err := c.Settled(t.Context(), time.Minute)
	if err != nil || broken(equations) != "" {
		t.Errorf("%v\n%s", err, broken(equations))
	}
	if looks < 4 {
		t.Errorf("the clock was asked %d times: the break was never seen", looks)
	}
	// And one that stays is told when the time is over.
	exec(`UPDATE points.points_account SET balance = balance + 1 WHERE user_id = 'member-01'`)
	if equations, err = c.Settled(t.Context(), 0); err != nil || !strings.Contains(broken(equations), "member-01") {
		t.Errorf("%v\n%s", err, broken(equations))
	}
}

func TestSettlingEndsWithItsContext(t *testing.T) {
	dir := copyOfDay(t)
	if _, err := attached(t, dir).ExecContext(t.Context(), `UPDATE points.points_account SET balance = balance + 1`); err != nil {
		t.Fatal(err)
	}
	c, err := check.Open(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := c.Settled(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// What retention has deleted is no damage, and what is deleted from the last hour is no retention.
func TestWhatRetentionDeletedIsNotMissed(t *testing.T) {
	dir := copyOfDay(t)
	conn := attached(t, dir)
	for _, s := range check.Services() {
		for _, query := range []string{
			`DELETE FROM "` + s + `".outbox_event WHERE deliver_at = 0`, `DELETE FROM "` + s + `".inbox_mark`, `DELETE FROM "` + s + `".outside_call`,
			`DELETE FROM "` + s + `".idempotency_record`,
		} {
			if _, err := conn.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := conn.ExecContext(t.Context(), `DELETE FROM "order".client_token_claim`); err != nil {
		t.Fatal(err)
	}
	if b := broken(checked(t, dir, later(20*24*time.Hour))); b != "" {
		t.Errorf("after 20 days:\n%s", b)
	}
	if b := broken(checked(t, dir)); !strings.Contains(b, effectCause) || !strings.Contains(b, said) {
		t.Errorf("deleted within the hour, broken are only:\n%s", b)
	}
}

// On a server the first id may be any: a rolled-back insert has used it up. A first row that is missing is found all the same.
func TestADeletedFirstRowIsFoundWhereIdsHaveGaps(t *testing.T) {
	dir := copyOfDay(t)
	conn := attached(t, dir)
	exec := func(query string) {
		t.Helper()
		if _, err := conn.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range check.Services() {
		for table, columns := range map[string][]string{
			"outbox_event": {"id"}, "outbox_pending": {"event_id"}, "outbox_delayed": {"event_id"}, "outbox_waiting": {"event_id"}, "outbox_dead": {"event_id"},
			"outbox_discarded": {"event_id"}, "inbox_mark": {"id"}, "idempotency_record": {"id"}, "outside_call": {"id"},
		} {
			for _, column := range columns {
				exec(`UPDATE "` + s + `".` + table + ` SET ` + column + ` = ` + column + ` + 1000000`)
			}
		}
	}
	if b := broken(checked(t, dir)); b != "" {
		t.Fatalf("gaps alone:\n%s", b)
	}
	keep := func(d time.Duration) func(*check.Checker) { return func(c *check.Checker) { c.Keep = d } }
	const first = `(SELECT id FROM "order".outbox_event WHERE type = 'OrderCreated' ORDER BY id LIMIT 1)`
	exec(`DELETE FROM "order".outbox_event WHERE id = ` + first)
	for what, set := range map[string][]func(*check.Checker){
		"at once": nil, "after a day and a half": {later(36 * time.Hour)}, "after 20 days of 30": {later(20 * 24 * time.Hour), keep(30 * 24 * time.Hour)},
	} {
		if b := broken(checked(t, dir, set...)); !strings.Contains(b, said) {
			t.Errorf("%s the first event is not missed; broken are:\n%s", what, b)
		}
	}
	// Older than what is kept, it may have been purged.
	if b := broken(checked(t, dir, later(20*24*time.Hour))); b != "" {
		t.Errorf("after 20 days of 7:\n%s", b)
	}
}
