package main

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo/drill"
	"github.com/convergo/convergo/drill/check"
)

// crashPoint is a named place of the code at which the platform is killed.
type crashPoint struct {
	name     string   // as the code passes it; commit points begin with the service's name, which is left out here
	services []string // whose code passes it while orders run
	most     int      // passages that a wave of orders surely makes in each of them
}

// crashPoints are all there are: TestEveryCrashPointOfTheCodeIsInTheTable.
func crashPoints() []crashPoint {
	all := serviceNames()
	emitting := []string{"order", "payment", "inventory", "coupon", "points", "shipping", "risk"}
	calling := []string{"payment", "shipping", "notification"}
	asked := []string{"order", "payment", "inventory", "coupon", "points"}
	return []crashPoint{
		{"relay.claimed", emitting, 5},      // nothing published
		{"broker.sent", nil, 20},            // published, not confirmed
		{"relay.published", emitting, 5},    // confirmed, not settled
		{"relay.settled", emitting, 5},      // settled
		{"inbox.fetched", all, 5},           // no handler has run
		{"inbox.handled", all, 5},           // the handlers have run, nothing is committed
		{"inbox.committed", all, 5},         // nothing is acknowledged
		{"inbox.acked", all, 5},             // all is done
		{"outside.reserved", calling, 5},    // the attempt is on record, nothing is called
		{"outside.called", calling, 5},      // the other side has answered, nobody wrote it down
		{"outside.finished", calling, 5},    // written down
		{"idempotency.handled", asked, 1},   // the request's work is done, nothing is committed
		{"idempotency.committed", asked, 1}, // committed, the client knows nothing
		{".commit.before", all, 10},         // of any transaction: requests, handlers, settlements, calls
		{".commit.after", all, 10},          // nobody who waits for it knows
	}
}

// TestACrashAtAnyPointOfAnyServiceLosesAndRepeatsNothing kills the platform at every point of one service, one after
// another, while orders of every kind run; after the last kill it must converge. CONVERGO_CRASH_ROUNDS=10 makes ten rounds
// with other passages and other orders of the points (make drill).
func TestACrashAtAnyPointOfAnyServiceLosesAndRepeatsNothing(t *testing.T) {
	file := programFile(t)
	for _, service := range serviceNames() {
		for round := range crashRounds(t) {
			t.Run(fmt.Sprintf("%s/%d", service, round), func(t *testing.T) {
				t.Parallel()
				seed := seedOf(service, round)
				var crashes []string
				for _, p := range crashPoints() {
					if !slices.Contains(p.services, service) {
						continue
					}
					point := service + "/" + p.name
					if strings.HasPrefix(p.name, ".") {
						point = service + p.name
					}
					crashes = append(crashes, fmt.Sprintf("%s:%d", point, 1+seed.IntN(p.most)))
				}
				seed.Shuffle(len(crashes), func(i, j int) { crashes[i], crashes[j] = crashes[j], crashes[i] })
				survive(t, file, crashes)
			})
		}
	}
}

// TestACrashAtAnyPassageOfAPointLosesAndRepeatsNothing kills the platform at the first, a middle and a late passage of
// every point, whichever service it is that passes.
func TestACrashAtAnyPassageOfAPointLosesAndRepeatsNothing(t *testing.T) {
	file := programFile(t)
	for _, p := range crashPoints() {
		if strings.HasPrefix(p.name, ".") {
			continue // nine points, one a service: the test above
		}
		for round := range crashRounds(t) {
			t.Run(fmt.Sprintf("%s/%d", p.name, round), func(t *testing.T) {
				t.Parallel()
				seed := seedOf(p.name, round)
				survive(t, file, []string{p.name, fmt.Sprintf("%s:%d", p.name, 2+seed.IntN(8)), fmt.Sprintf("%s:%d", p.name, 15+seed.IntN(15))})
			})
		}
	}
}

func crashRounds(t *testing.T) int {
	t.Helper()
	text := os.Getenv("CONVERGO_CRASH_ROUNDS")
	if text == "" {
		return 1
	}
	rounds, err := strconv.Atoi(text)
	if err != nil || rounds < 1 {
		t.Fatalf("CONVERGO_CRASH_ROUNDS=%s is no number of rounds", text)
	}
	return rounds
}

func seedOf(name string, round int) *rand.Rand {
	return rand.New(rand.NewPCG(faultSeed(uint64(round), name, "crash"), uint64(round)))
}

// survive runs orders of every kind through a platform that is killed at each crash point in turn and started again, and
// then fails unless everything has converged.
func survive(t *testing.T, file string, crashes []string) {
	t.Logf("crashes: %v", crashes)
	timed, stop := context.WithTimeout(t.Context(), 3*time.Minute)
	defer stop()
	ctx, cancel := context.WithCancelCause(timed)
	defer cancel(nil)
	began := time.Now()
	d := newCrashDrill(t, file)
	args := d.child().Args
	playing, enough := make(chan error, 1), atomic.Bool{}
	var shops []*drill.Shop
	go func() {
		err := d.playWaves(ctx, &shops, &enough)
		if err != nil {
			cancel(err) // no use in waiting for a point that nobody takes the platform to
		}
		playing <- err
	}()
	for i, crash := range crashes {
		d.child().Args = append(slices.Clone(args), "--crash-at", crash)
		d.dieAt(ctx, t, crash)
		if i%2 == 0 {
			// After a power cut the broker is refilled from the outboxes, which would hide what a kill has lost. A kill loses nothing
			// of the broker, so every other time the platform is not told that it was killed.
			d.forget(t)
		}
	}
	d.child().Args = args
	if err := d.child().Start(ctx); err != nil {
		t.Fatal(err)
	}
	crashed := time.Since(began)
	enough.Store(true)
	if err := <-playing; err != nil {
		t.Fatal(err)
	}
	played := time.Since(began)
	for _, shop := range shops {
		if err := shop.Settle(ctx, d.quiet); err != nil {
			t.Fatal(err)
		}
		for _, wrong := range shop.Unexpected() {
			t.Error(wrong)
		}
	}
	if _, err := d.shop.Client.DiscardPoison(ctx); err != nil { // there is none: whatever is there is an error
		t.Error(err)
	}
	if err := d.child().Stop(30 * time.Second); err != nil {
		t.Error(err)
	}
	converged(ctx, t, d.dir)
	t.Logf("%d waves of orders; last crash after %v, played after %v, converged after %v", len(shops), crashed, played, time.Since(began))
}

// newCrashDrill is a platform that was not started yet, and the world and the client around it.
func newCrashDrill(t *testing.T, file string) *theDrill {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	d, err := demoCommand{Seed: 7, Buyers: 16}.newDrill(ctx, streams{err: io.Discard, out: io.Discard}, t.TempDir(), drill.Day{Orders: []drill.Order{{}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			if keep := os.Getenv("CONVERGO_CRASH_KEEP"); keep != "" {
				_ = os.CopyFS(filepath.Join(keep, filepath.Base(t.Name())+"-"+strconv.Itoa(os.Getpid())), os.DirFS(d.dir))
			}
			text, _ := os.ReadFile(filepath.Join(d.dir, "platform.log"))
			t.Logf("platform.log:\n%s", text[max(0, len(text)-8000):])
		}
	})
	d.child().Program = file
	d.child().Args = append(d.child().Args, "--payment-window", "2s")
	return d
}

// child is the one process of the platform.
func (d *theDrill) child() *drill.Child { return d.platform.(alone).Child }

// playWaves plays waves of orders until it is enough, at least one.
func (d *theDrill) playWaves(ctx context.Context, shops *[]*drill.Shop, enough *atomic.Bool) error {
	for wave := 0; wave == 0 || !enough.Load(); wave++ {
		shop := &drill.Shop{Day: everyKind(wave), Client: d.shop.Client, Cashier: d.world, Buyers: 16}
		if wave == 0 {
			shop.Strangers = 1
		}
		if err := shop.Open(ctx); err != nil {
			return err
		}
		*shops = append(*shops, shop)
		if err := shop.Run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// dieAt starts the platform and fails unless it dies at the point. Some points are passed already while it starts.
func (d *theDrill) dieAt(ctx context.Context, t *testing.T, crash string) {
	t.Helper()
	before, err := d.log.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.child().Start(ctx); err == nil {
		deadline := time.NewTimer(time.Minute)
		defer deadline.Stop()
		select {
		case <-d.child().Died():
		case <-deadline.C:
			t.Fatalf("the platform did not pass %s within a minute", crash)
		case <-ctx.Done():
			t.Fatalf("the platform did not pass %s: %v", crash, context.Cause(ctx))
		}
	} else if ctx.Err() != nil {
		t.Fatalf("crash at %s: %v", crash, errors.Join(err, context.Cause(ctx)))
	}
	text, err := os.ReadFile(d.log.Name())
	if err != nil {
		t.Fatal(err)
	}
	point, _, _ := strings.Cut(crash, ":")
	if !strings.HasSuffix(string(text[before.Size():]), "\n") || !strings.Contains(string(text[before.Size():]), "killed at crash point "+point+",") {
		t.Fatalf("the platform ended, and not at %s: %s", crash, text[before.Size():])
	}
}

// forget removes the signs of an unclean stop.
func (d *theDrill) forget(t *testing.T) {
	t.Helper()
	for _, name := range []string{aliveFile, refillFile} {
		if err := os.Remove(filepath.Join(d.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

// converged fails unless every equation holds over the tables of a stopped platform.
func converged(ctx context.Context, t *testing.T, dir string) {
	t.Helper()
	checker, err := check.Open(ctx, dir, "")
	if err != nil {
		t.Fatal(err)
	}
	at, stopped := stoppedAt(dir)
	if !stopped {
		t.Error("the platform was not stopped cleanly")
	}
	checker.Now = func() time.Time { return at }
	equations, err := checker.Run(ctx)
	if err := errors.Join(err, checker.Close()); err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, e := range equations {
		rows += e.Checked
		if e.Broken > 0 {
			t.Errorf("%s: %d of %d: %s", e.Name, e.Broken, e.Checked, e.Detail)
		}
	}
	if rows == 0 {
		t.Error("no row was checked")
	}
}

// everyKind is a small day with one order of each kind: paid, paid by a coupon alone, with points, too late, twice, wrong
// and elsewhere, declined, canceled, abandoned, racing its timeout, returned whole and in part, and sold out.
func everyKind(wave int) drill.Day {
	sku := func(name string) string { return fmt.Sprintf("W%d-%s", wave, name) }
	day := drill.Day{
		Currency: "GBP", Grants: map[string]int64{sku("saver"): 500},
		Products: map[string]drill.Product{
			sku("CUP"): {Prices: map[string]int64{"": 1_250}, Stock: 1_000}, sku("POT"): {Prices: map[string]int64{"": 3_999}, Stock: 1_000},
			sku("ONE"): {Prices: map[string]int64{"": 99}, Stock: 1},
		},
		Coupons: []drill.Coupon{{Code: sku("TEN"), Value: 1_000, Limit: 100}, {Code: sku("ALL"), Value: 1_000_000, Limit: 100}},
	}
	cups, pots := drill.Line{SKU: sku("CUP"), Quantity: 3, Price: 1_250}, drill.Line{SKU: sku("POT"), Quantity: 1, Price: 3_999}
	add := func(o drill.Order) {
		o.Ref = fmt.Sprintf("W%d-%02d", wave, len(day.Orders))
		if o.User == "" {
			o.User = "buyer-" + o.Ref
		}
		if len(o.Lines) == 0 {
			o.Lines = []drill.Line{cups, pots, cups} // one SKU on two lines
		}
		day.Orders = append(day.Orders, o)
	}
	add(drill.Order{Behaviour: drill.Pays, Coupon: sku("TEN")})
	add(drill.Order{Behaviour: drill.Pays, Coupon: sku("ALL")})
	add(drill.Order{Behaviour: drill.Pays, User: sku("saver"), Points: 300})
	add(drill.Order{Behaviour: drill.Returns, Coupon: sku("TEN"), User: sku("saver"), Points: 200})
	add(drill.Order{Behaviour: drill.ReturnsSome, Return: []drill.Return{{Line: 0, Quantity: 2}, {Line: 1, Quantity: 1}}})
	add(drill.Order{Behaviour: drill.SoldOut, Lines: []drill.Line{{SKU: sku("ONE"), Quantity: 2, Price: 99}}})
	add(drill.Order{Behaviour: drill.Cancels, Coupon: sku("TEN")})
	for _, b := range []drill.Behaviour{
		drill.PaysTwice, drill.PaysWrong, drill.PaysElsewhere, drill.Declined, drill.Abandons, drill.PaysLate, drill.RacesTimeout, drill.Returns,
	} {
		add(drill.Order{Behaviour: b})
	}
	return day
}

func TestEveryCrashPointOfTheCodeIsInTheTable(t *testing.T) {
	inCode := pointsOfTheCode(t, filepath.Join("..", ".."))
	var inTable []string
	for _, p := range crashPoints() {
		inTable = append(inTable, p.name)
	}
	slices.Sort(inTable)
	if !slices.Equal(inCode, inTable) {
		t.Errorf("the code passes %v, the table has %v", inCode, inTable)
	}
}

// pointsOfTheCode are the names that probes are called with: the texts in Probe.At(…), of which a part may be computed. Those of
// RocketMQ's transactional messages, which the platform does not send, are crashed at by the tests of their own package.
func pointsOfTheCode(t *testing.T, root string) []string {
	t.Helper()
	var points []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "testdata"):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				return true
			}
			if at, ok := call.Fun.(*ast.SelectorExpr); !ok || at.Sel.Name != "At" || !isProbe(at.X) {
				return true
			}
			ast.Inspect(call.Args[0], func(n ast.Node) bool {
				if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING {
					point, err := strconv.Unquote(text.Value)
					if err == nil && !slices.Contains(points, point) && !strings.HasPrefix(point, "transaction.") {
						points = append(points, point)
					}
				}
				return true
			})
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(points)
	return points
}

func isProbe(e ast.Expr) bool {
	switch x := e.(type) {
	case *ast.SelectorExpr:
		return strings.EqualFold(x.Sel.Name, "probe")
	case *ast.Ident:
		return strings.EqualFold(x.Name, "probe")
	}
	return false
}

func TestTheCrashPointsThatTheFlagKnowsAreTheTable(t *testing.T) {
	for _, p := range crashPoints() {
		name := p.name
		if strings.HasPrefix(name, ".") {
			name = serviceNames()[0] + name
		}
		if !knownCrashPoint(name) || !knownCrashPoint("payment/"+name) {
			t.Errorf("--crash-at does not know %s", name)
		}
	}
	for _, name := range []string{"", "nonsense", "relay.claimed2", "nobody/relay.claimed", "nobody.commit.before", "payment/"} {
		if knownCrashPoint(name) {
			t.Errorf("--crash-at takes %q for a point", name)
		}
	}
}
