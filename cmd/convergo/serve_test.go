package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo/testlog"
)

// asRunning is a child process as what the requests of tests need of it.
func (d *theDrill) asRunning(t *testing.T) *running {
	t.Helper()
	secrets, err := loadSecrets(d.dir)
	if err != nil {
		t.Fatal(err)
	}
	return &running{t: t, url: d.url, dir: d.dir, secrets: secrets, client: &http.Client{Timeout: 20 * time.Second}}
}

// acknowledged is an order that a client was told to be placed, with what he would repeat.
type acknowledged struct {
	user, key, body, no string
	answer              answer
}

// buyers are the bearer tokens of some users.
func (p *running) buyers(n int) []string {
	p.t.Helper()
	var bearers []string
	for i := range n {
		bearers = append(bearers, p.session(fmt.Sprintf("u-%d", i)))
	}
	return bearers
}

// hurry places orders as fast as it can until the platform is gone, and returns those acknowledged.
func (p *running) hurry(buyers []string, sku string, progress *atomic.Int64) []acknowledged {
	var mu sync.Mutex
	var placed []acknowledged
	var all sync.WaitGroup
	for i, bearer := range buyers {
		all.Go(func() {
			headers := []string{"Authorization", "Bearer " + bearer, "Content-Type", "application/json", "Idempotency-Key"}
			for n := 0; ; n++ {
				key := fmt.Sprintf("k-%d-%d", i, n)
				a, err := p.try(http.MethodPost, "/tokens", strings.NewReader(`{"scene":"order"}`), append(headers, "t"+key)...)
				var token struct{ Token string }
				if err != nil || a.status != http.StatusCreated || json.Unmarshal(a.body, &token) != nil {
					return
				}
				body := fmt.Sprintf(`{"client_token":%q,"currency":"GBP","reference":%q,"lines":[{"sku":%q,"quantity":1}]}`, token.Token, key, sku)
				a, err = p.try(http.MethodPost, "/orders", strings.NewReader(body), append(headers, key)...)
				var o orderView
				if err != nil || a.status != http.StatusCreated || json.Unmarshal(a.body, &o) != nil {
					return
				}
				progress.Add(1)
				mu.Lock()
				placed = append(placed, acknowledged{bearer, key, body, o.OrderNo, a})
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return placed
}

// still fails unless every acknowledged order is there and a repeat of its request gets the same answer.
func (p *running) still(placed []acknowledged) {
	p.t.Helper()
	if len(placed) < 20 {
		p.t.Errorf("only %d orders were acknowledged", len(placed))
	}
	for _, o := range placed {
		var view orderView
		p.call(http.MethodGet, "/orders/"+o.no, o.user, "", nil).into(p.t, http.StatusOK, &view)
		again := p.send(http.MethodPost, "/orders", strings.NewReader(o.body), "Authorization",
			"Bearer "+o.user, "Content-Type", "application/json", "Idempotency-Key", o.key)
		if again.status != http.StatusCreated || string(again.body) != string(o.answer.body) || again.header.Get("Idempotency-Replayed") != "true" {
			p.t.Errorf("order %s: the repeat got %d %s", o.no, again.status, again.body)
		}
	}
}

func TestSigtermFinishesWhatIsInFlightAndExitsWithZero(t *testing.T) {
	t.Parallel()
	d := newCrashDrill(t, programFile(t))
	if err := d.child().Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := d.asRunning(t)
	p.stock("CUP", 500, 1_000_000)
	var progress atomic.Int64
	var placed []acknowledged
	buyers, done := p.buyers(16), make(chan struct{})
	go func() { placed = p.hurry(buyers, "CUP", &progress); close(done) }()
	eventually(t, 30*time.Second, "orders come in", func() bool { return progress.Load() >= 50 })
	if err := d.child().Stop(30 * time.Second); err != nil { // not only that it ends, but with exit code 0
		t.Error(err)
	}
	<-done
	if _, err := os.Stat(filepath.Join(d.dir, aliveFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the sign of an unclean stop is there: %v", err)
	}
	if err := d.child().Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.still(placed)
	if err := d.child().Stop(30 * time.Second); err != nil {
		t.Error(err)
	}
}

func TestSigkillLosesNothingThatWasAcknowledged(t *testing.T) {
	t.Parallel()
	d := newCrashDrill(t, programFile(t))
	d.child().Args = append(d.child().Args, "--payment-window", "1h") // nothing closes while it is looked at
	if err := d.child().Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := d.asRunning(t)
	p.stock("CUP", 500, 1_000_000)
	var progress atomic.Int64
	var placed []acknowledged
	buyers, done := p.buyers(16), make(chan struct{})
	go func() { placed = p.hurry(buyers, "CUP", &progress); close(done) }()
	eventually(t, 30*time.Second, "orders come in", func() bool { return progress.Load() >= 50 })
	if err := d.child().Kill(); err != nil {
		t.Fatal(err)
	}
	<-done
	if err := d.child().Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.still(placed)
	for _, o := range placed { // and everything goes on: each is answered by every service
		if v := p.wait(o.user, o.no, "payable"); !v.IsPayable {
			t.Errorf("order %s: %s %s", o.no, v.Status, v.Reason)
		}
	}
	p.settled(serviceNames()...)
	if err := d.child().Stop(30 * time.Second); err != nil {
		t.Error(err)
	}
	converged(t.Context(), t, d.dir)
}

func TestServicesThatStartLaterCatchUp(t *testing.T) {
	for name, between := range map[string]func(dir string) error{
		"with the broker's events":    func(string) error { return nil },
		"without the broker's folder": func(dir string) error { return os.RemoveAll(filepath.Join(dir, brokerFolder)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			all := startPlatform(t, dir, quickly()...)
			all.stock("CUP", 500, 10)
			all.end(0)

			some := startPlatform(t, dir, append(quickly(), "--services", "order,payment")...)
			bearer := some.session("u-1")
			o := some.place(bearer, "r-1", "CUP", 2)
			some.call(http.MethodGet, "/stock/CUP", some.secrets.OperatorKey, "", nil).problem(t, http.StatusNotFound)
			some.call(http.MethodGet, "/ops/inventory/backlog", some.secrets.OperatorKey, "", nil).problem(t, http.StatusNotFound)
			for path := range some.document().Paths {
				if strings.HasPrefix(path, "/stock") || strings.HasPrefix(path, "/ops/ledger") {
					t.Errorf("%s is documented and not served", path)
				}
			}
			some.settled("order", "payment")
			if v := some.wait(bearer, o.OrderNo, ""); v.Status != "CREATED" || v.IsPayable {
				t.Errorf("without the services that must agree it is %s, payable: %t", v.Status, v.IsPayable)
			}
			some.end(0)
			if err := between(dir); err != nil {
				t.Fatal(err)
			}

			all = startPlatform(t, dir, quickly()...)
			if v := all.wait(bearer, o.OrderNo, "payable"); !v.IsPayable {
				t.Fatalf("%s %s", v.Status, v.Reason)
			}
			all.pay(bearer, o.OrderNo)
			if v := all.wait(bearer, o.OrderNo, "completed"); v.Status != "COMPLETED" {
				t.Errorf("%s %s", v.Status, v.Reason)
			}
			all.settled(serviceNames()...)
			all.converged()
		})
	}
}

// A power cut may take from the broker what it confirmed a moment before. It is refilled from the outboxes: here with
// events that were settled, and that no consumer has seen.
func TestABrokerThatLostEventsIsRefilled(t *testing.T) {
	for name, lose := range map[string]func(d *theDrill, earlier string) error{
		"all of them": func(d *theDrill, _ string) error { return os.RemoveAll(filepath.Join(d.dir, brokerFolder)) },
		"the last ones": func(d *theDrill, earlier string) error {
			if err := os.RemoveAll(filepath.Join(d.dir, brokerFolder)); err != nil {
				return err
			}
			return os.CopyFS(filepath.Join(d.dir, brokerFolder), os.DirFS(earlier))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newCrashDrill(t, programFile(t))
			d.child().Args = append(d.child().Args, "--payment-window", "1h")
			args := d.child().Args
			if err := d.child().Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			p := d.asRunning(t)
			p.stock("CUP", 500, 1000)
			buyers := p.buyers(16)
			if err := d.child().Stop(30 * time.Second); err != nil {
				t.Fatal(err)
			}
			earlier := filepath.Join(t.TempDir(), "earlier")
			if err := os.CopyFS(earlier, os.DirFS(filepath.Join(d.dir, brokerFolder))); err != nil {
				t.Fatal(err)
			}

			d.child().Args = append(args, "--crash-at", "order/relay.settled:5")
			if err := d.child().Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			var progress atomic.Int64
			placed := p.hurry(buyers, "CUP", &progress) // until it dies
			<-d.child().Died()
			t.Logf("%d orders were acknowledged when it died", len(placed))
			if err := lose(d, earlier); err != nil {
				t.Fatal(err)
			}
			d.child().Args = args
			if err := d.child().Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, o := range placed {
				if v := p.wait(o.user, o.no, "payable"); !v.IsPayable {
					t.Errorf("order %s: %s %s", o.no, v.Status, v.Reason)
				}
			}
			p.settled(serviceNames()...)
			if err := d.child().Stop(30 * time.Second); err != nil {
				t.Error(err)
			}
			converged(t.Context(), t, d.dir)
		})
	}
}

// What a power cut may have cost a service is made good when that service starts, however many starts of others come before.
func TestARefillIsOwedUntilTheServiceStarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startPlatform(t, dir, append(quickly(), "--payment-window", "1h")...)
	p.stock("CUP", 500, 10)
	p.end(0)
	p = startPlatform(t, dir, append(quickly(), "--payment-window", "1h", "--services", "order,inventory")...)
	bearer := p.session("u-1")
	o := p.place(bearer, "r-1", "CUP", 1)
	p.settled("order", "inventory") // both have sent what they had to say
	p.end(0)
	if err := os.RemoveAll(filepath.Join(dir, brokerFolder)); err != nil {
		t.Fatal(err)
	}
	for _, services := range []string{"payment", "ledger,order"} { // the order's events are sent again, the inventory's are not
		startPlatform(t, dir, "--services", services).end(0)
	}
	owes := &folder{path: dir}
	if left, err := owes.owed(); err != nil || len(left) != 6 || left["inventory"].IsZero() || !left["order"].IsZero() {
		t.Errorf("%v %v are owed", left, err)
	}
	p = startPlatform(t, dir, quickly()...)
	if v := p.wait(bearer, o.OrderNo, "payable"); !v.IsPayable {
		t.Errorf("%s %s", v.Status, v.Reason)
	}
	if left, err := owes.owed(); err != nil || len(left) != 6 {
		t.Errorf("%v %v are owed while the broker has not synced what was sent again: a second power cut would lose it", left, err)
	}
	p.end(0)
	if left, err := owes.owed(); err != nil || len(left) > 0 {
		t.Errorf("%v %v are owed after a clean stop", left, err)
	}
}

func TestTheOperatorKeyIsShownToPeopleOnly(t *testing.T) {
	f := &folder{path: "data", Secrets: secrets{OperatorKey: "op_secret"}}
	for shown, want := range map[bool]string{true: "operator key   op_secret (in data/secrets.json)\n", false: "operator key   in data/secrets.json\n"} {
		var out testlog.Lines
		serveCommand{Services: []string{"order"}, Addr: "127.0.0.1:1"}.greet(streams{out: &out, shown: shown}, f)
		if !strings.HasSuffix(out.String(), want) {
			t.Errorf("shown %t: %s", shown, out.String())
		}
	}
}
