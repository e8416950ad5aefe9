package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/drill"
	"github.com/convergo/convergo/drill/check"
	"github.com/convergo/convergo/internal/freeport"
	"github.com/convergo/convergo/store/sqlite"
	"github.com/convergo/convergo/trade/channel"
	"github.com/convergo/convergo/trade/simulate"
)

// platform is `convergo serve` in a process of its own; the payment channel, the carrier and the messenger are in this
// one, without any faults.
type platform struct {
	child   *drill.Child
	client  *drill.Client
	world   *simulate.World
	orders  *sqlite.Store // the order service's database, read only
	pid     int
	output  bytes.Buffer
	plainly *http.Client
}

func buildProgram(t testing.TB) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "convergo")
	build := exec.Command("go", "build", "-o", program, "../cmd/convergo")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, output)
	}
	return program
}

// startPlatform starts the program on an empty folder. A parcel arrives at once, and the carrier is asked after 5 ms: how
// long parcels travel is nothing of ours.
func startPlatform(t testing.TB, program string, options ...string) *platform {
	t.Helper()
	dir := t.TempDir()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address, err := freeport.Address()
	must(t, err)
	p := &platform{plainly: &http.Client{Timeout: 10 * time.Second}}
	p.child = &drill.Child{Program: program, URL: "http://" + address, Output: &p.output, Args: append([]string{
		"serve", "--data", dir, "--addr", address, "--world", "http://" + listener.Addr().String(), "--log", "warn", "--rate", "0",
		"--track-every", "5ms",
	}, options...)}
	must(t, p.child.Start(context.Background()))
	t.Cleanup(func() {
		if err := p.child.Stop(30 * time.Second); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the platform said:\n%s", p.output.String())
		}
	})
	var secrets struct {
		OperatorKey   string `json:"operator_key"`
		ChannelSecret string `json:"channel_secret"`
	}
	text, err := os.ReadFile(filepath.Join(dir, "secrets.json"))
	must(t, err)
	must(t, json.Unmarshal(text, &secrets))
	text, err = os.ReadFile(filepath.Join(dir, "LOCK"))
	must(t, err)
	if _, err := fmt.Sscanf(string(text), "process %d on", &p.pid); err != nil {
		t.Fatalf("the folder's lock says %q: %v", text, err)
	}
	p.openWorld(t, listener, secrets.ChannelSecret)
	p.client = &drill.Client{URL: p.child.URL, OperatorKey: secrets.OperatorKey, HTTP: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 128}, Timeout: 20 * time.Second,
	}}
	p.orders, err = sqlite.Open(context.Background(), filepath.Join(dir, "order.db"), sqlite.Options{ReadOnly: true})
	must(t, err)
	t.Cleanup(func() { must(t, p.orders.Close()) })
	return p
}

func (p *platform) openWorld(t testing.TB, listener net.Listener, channelSecret string) {
	t.Helper()
	secret, err := channel.ParseSecret(channelSecret)
	must(t, err)
	db, err := sqlite.Open(context.Background(), filepath.Join(t.TempDir(), "world.db"), sqlite.Options{Relaxed: true})
	must(t, err)
	must(t, db.Migrate(context.Background(), "world", simulate.Migrations()))
	p.world, err = simulate.New(db, simulate.Config{
		Merchant: "convergo-demo", Secrets: []channel.Secret{secret}, NotifyURL: p.child.URL + "/payments/notify/standard",
		Workers: 32, Transit: time.Millisecond,
	})
	must(t, err)
	server := &http.Server{Handler: p.world.Handler()}
	go func() { _ = server.Serve(listener) }() // ends with Close
	running, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.world.Run(running) }()
	t.Cleanup(func() {
		stop()
		must(t, <-ended)
		must(t, server.Close())
		must(t, db.Close())
	})
}

// completed is how many orders have got to their end. A canceled one would be waited for in vain.
func (p *platform) completed(ctx context.Context, t testing.TB) (n int) {
	t.Helper()
	var canceled int
	var reason string
	must(t, p.orders.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT COUNT(*), COALESCE(SUM(status = 'CANCELED'), 0), COALESCE(MAX(reason), '') FROM orders "+
			"WHERE status IN ('COMPLETED', 'CANCELED')").Scan(&n, &canceled, &reason)
	}))
	if canceled > 0 {
		t.Fatalf("%d orders were canceled: %s", canceled, reason)
	}
	return n
}

// work is what the nine databases have done.
func (p *platform) work(t testing.TB) (sum sqlite.Stats) {
	t.Helper()
	for _, service := range check.Services() {
		var s struct{ Commits, Transactions, Statements int64 }
		p.get(t, "/ops/"+service+"/stats", &s)
		sum.Commits += s.Commits
		sum.Updates += s.Transactions
		sum.Statements += s.Statements
	}
	return sum
}

func (p *platform) get(t testing.TB, path string, into any) {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, p.child.URL+path, nil)
	must(t, err)
	r.Header.Set("Authorization", "Bearer "+p.client.OperatorKey)
	answer, err := p.plainly.Do(r)
	must(t, err)
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s", path, answer.Status)
	}
	must(t, json.NewDecoder(answer.Body).Decode(into))
}

// sale is a run of whole orders: from the first request until the last order is COMPLETED.
type sale struct {
	run                               // its cpu is the platform's
	commits, statements float64       // of an order, in all databases together
	outside             time.Duration // processor time of this process: buyers, channel, carrier and messenger
}

// sell plays the orders with so many buyers at the same time. A buyer asks for a token, places an order, waits until it
// is payable, opens a payment, pays, and goes on to the next order; a patient one waits before until it is COMPLETED.
func (p *platform) sell(t testing.TB, day drill.Day, buyers int, patient bool) sale {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	s := &drill.Shop{Day: day, Client: p.client, Cashier: p.world, Buyers: buyers, Patient: patient}
	goal := p.completed(ctx, t) + len(day.Orders)
	before, cpu, outside, began := p.work(t), timeOf(p.pid), processTime(), time.Now()
	must(t, s.Run(ctx))
	p.await(ctx, t, func() bool { return p.completed(ctx, t) >= goal })
	elapsed := time.Since(began)
	// What the orders still cause, letters to customers above all, belongs to them, and must not disturb the next run.
	p.await(ctx, t, func() bool { left, err := p.client.Unfinished(ctx); return err == nil && left == 0 })
	after, n := p.work(t), float64(len(day.Orders))
	return sale{
		run{done: len(day.Orders), elapsed: elapsed, cpu: timeOf(p.pid) - cpu},
		float64(after.Commits-before.Commits) / n, float64(after.Statements-before.Statements) / n, processTime() - outside,
	}
}

func (p *platform) await(ctx context.Context, t testing.TB, there func() bool) {
	t.Helper()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for !there() {
		select {
		case <-look.C:
		case <-p.child.Died():
			t.Fatalf("the platform died:\n%s", p.output.String())
		case <-ctx.Done():
			t.Fatal("the platform has not finished in 5 minutes")
		}
	}
}

// goodDay is n orders that are all paid: one to four lines, every third one with the hot SKU, coupons.
func goodDay(n int) drill.Day {
	day := drill.Generate(1, n)
	for i := range day.Orders {
		o := &day.Orders[i]
		o.Behaviour, o.Return, o.Points = drill.Pays, nil, 0 // who spends points may find that others of his orders have spent them
		if o.Lines[0].SKU == "LAST-1" {                      // there is one of it
			o.Lines = []drill.Line{{SKU: "HOT-1", Quantity: 1, Price: day.Products["HOT-1"].Prices[""]}}
		}
	}
	return day
}

// again is the first n orders of the day, as orders of their own.
func again(day drill.Day, n int, name string) drill.Day {
	day.Orders = slices.Clone(day.Orders[:n])
	for i := range day.Orders {
		day.Orders[i].Ref = fmt.Sprintf("%s-%06d", name, i)
	}
	return day
}

// BenchmarkOrders is whole orders converged per second, with 1 and with 64 buyers, in pairs on one platform. With patient
// buyers one buyer is one order at a time, from its first request to COMPLETED. Hasty ones go on when they have paid, so
// that one buyer keeps several orders moving. The slow disk takes 3.8 ms more for each commit: about 260 syncs a second.
func BenchmarkOrders(b *testing.B) {
	program := buildProgram(b)
	for _, c := range []struct {
		name    string
		patient bool
		options []string
	}{
		{"patient", true, nil},
		{"hasty", false, nil},
		{"patient-slow-disk", true, []string{"--commit-delay", "3800us"}},
		{"hasty-slow-disk", false, []string{"--commit-delay", "3800us"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			p, patient := startPlatform(b, program, c.options...), c.patient
			many := size(orderCount, 32)
			few := max(many/8, 8)
			day := p.open(b, many)
			p.sell(b, again(day, many, "warm"), 64, patient)
			var one, all sales
			for b.Loop() {
				for range pairs() {
					one = append(one, p.sell(b, again(day, few, fmt.Sprint("one-", len(one))), 1, patient))
					all = append(all, p.sell(b, again(day, many, fmt.Sprint("all-", len(all))), 64, patient))
				}
			}
			noTime(b)
			all.runs().against(b, one.runs(), "of-one-buyer")
			all.report(b, "")
			one.report(b, "one-buyer-")
		})
	}
}

// open sets up the shop for days of n orders, with enough of everything.
func (p *platform) open(t testing.TB, n int) drill.Day {
	t.Helper()
	day := goodDay(n)
	for sku, product := range day.Products {
		product.Stock = 1_000_000_000
		day.Products[sku] = product
	}
	for i := range day.Coupons {
		day.Coupons[i].Limit = 1_000_000
	}
	must(t, (&drill.Shop{Day: day, Client: p.client, Cashier: p.world}).Open(context.Background()))
	return day
}

type sales []sale

func (s sales) runs() series {
	runs := make(series, len(s))
	for i, one := range s {
		runs[i] = one.run
	}
	return runs
}

func (s sales) median(of func(sale) float64) float64 {
	values := make([]float64, len(s))
	for i, one := range s {
		values[i] = of(one)
	}
	return median(values)
}

func (s sales) report(b *testing.B, prefix string) {
	b.ReportMetric(s.median(func(s sale) float64 { return s.rate() }), prefix+"orders/s")
	b.ReportMetric(s.median(func(s sale) float64 { return s.commits }), prefix+"commits/order")
	b.ReportMetric(s.median(func(s sale) float64 { return s.statements }), prefix+"statements/order")
	b.ReportMetric(s.median(func(s sale) float64 { return s.micros() / 1000 }), prefix+"cpu-ms/order")
	b.ReportMetric(s.median(func(s sale) float64 { return s.outside.Seconds() * 1000 / float64(s.done) }), prefix+"outside-cpu-ms/order")
}
