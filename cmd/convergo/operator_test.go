package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo/drill"
)

func TestTheStoryOfAnOrderTellsEverythingInOrderWithCauses(t *testing.T) {
	t.Parallel()
	p := startPlatform(t, t.TempDir(), quickly()...)
	p.stock("CUP", 5_000, 10)
	p.operator(http.MethodPost, "/coupons", "ten", map[string]any{
		"code": "TEN", "face_value": 1_000, "currency": "GBP", "total_limit": 5, "per_user_limit": 5,
		"valid_from": time.Now().Add(-time.Hour).UTC(), "valid_until": time.Now().Add(time.Hour).UTC(),
	}, nil)
	p.operator(http.MethodPost, "/points/grants", "welcome", map[string]any{"user": "u-1", "points": 100, "key": "welcome"}, nil)
	bearer := p.session("u-1")
	body := p.orderBody(bearer, "r-1", "CUP", 2)
	body["coupon_code"], body["points_to_spend"] = "TEN", 100
	var o orderView
	p.call(http.MethodPost, "/orders", bearer, "order", body).into(t, http.StatusCreated, &o)
	p.wait(bearer, o.OrderNo, "payable")
	p.pay(bearer, o.OrderNo)
	if o = p.wait(bearer, o.OrderNo, "completed"); o.Status != "COMPLETED" {
		t.Fatalf("%s %s", o.Status, o.Reason)
	}
	p.settled(serviceNames()...)

	var story struct {
		OrderNo string `json:"order_no"`
		Entries []struct {
			At                        time.Time
			Service, What, Key, Cause string
		}
		Unanswered []any
	}
	p.call(http.MethodGet, "/orders/"+o.OrderNo+"/story", bearer, "", nil).into(t, http.StatusOK, &story)
	if len(story.Unanswered) > 0 {
		t.Errorf("%v do not answer", story.Unanswered)
	}
	told, at := map[string]bool{}, map[string]int{}
	for i, e := range story.Entries {
		told[e.Service] = true
		at[e.What] = i
		if i > 0 && e.At.Before(story.Entries[i-1].At) {
			t.Errorf("%q stands before %q and was later", story.Entries[i-1].What, e.What)
		}
		if e.Key == "" && e.Cause == "" {
			t.Errorf("%s: %s has neither key nor cause", e.Service, e.What)
		}
		if strings.HasPrefix(e.What, "effect ") && (e.Key == "" || e.Cause == "") {
			t.Errorf("%s: %s: key %q, cause %q", e.Service, e.What, e.Key, e.Cause)
		}
	}
	if services := slices.Sorted(maps.Keys(told)); len(services) != len(serviceNames()) {
		t.Errorf("only %v tell anything", services)
	}
	previous := -1
	for _, move := range []string{"· → CREATED", "CREATED → PAID", "PAID → SHIPPED", "SHIPPED → COMPLETED"} {
		found := slices.IndexFunc(story.Entries, func(e struct {
			At                        time.Time
			Service, What, Key, Cause string
		}) bool {
			return e.Service == "order" && strings.Contains(e.What, move)
		})
		if found <= previous {
			t.Errorf("%q is at place %d, after %d", move, found, previous)
		}
		previous = found
	}
	stranger := p.session("u-2")
	p.call(http.MethodGet, "/orders/"+o.OrderNo+"/story", stranger, "", nil).problem(t, http.StatusNotFound)
	p.call(http.MethodGet, "/orders/"+o.OrderNo, stranger, "", nil).problem(t, http.StatusNotFound)
	p.call(http.MethodPost, "/orders/"+o.OrderNo+"/cancel", stranger, "k", struct{}{}).problem(t, http.StatusNotFound)
	p.call(http.MethodPost, "/orders/"+o.OrderNo+"/refunds", stranger, "k", map[string]string{"reason": "mine now"}).problem(t, http.StatusNotFound)
	p.converged()
}

// deadLetters are the ids of a service's open dead letters and their errors.
func (p *running) deadLetters(service string) map[string]string {
	p.t.Helper()
	var page struct {
		Dead []struct {
			ID, Error, Place string
			Attempts         int
			Event            struct{ Key, Payload string }
		}
	}
	p.operator(http.MethodGet, "/ops/"+service+"/dead-letters", "", nil, &page)
	letters := map[string]string{}
	for _, d := range page.Dead {
		if d.Attempts < 1 || d.Place == "" || d.Event.Key != "OrderPaid:POISON-1" || d.Event.Payload != "{not JSON" {
			p.t.Errorf("dead letter %+v", d)
		}
		letters[d.ID] = d.Error
	}
	return letters
}

func TestDeadLettersAreListedRedrivenAndDiscarded(t *testing.T) {
	t.Parallel()
	p := startPlatform(t, t.TempDir(), quickly()...)
	p.stock("CUP", 500, 10)
	if err := poison(t.Context(), "sqlite:"+filepath.Join(p.dir, "risk.db"), 1); err != nil {
		t.Fatal(err)
	}
	var letters map[string]string
	eventually(t, 20*time.Second, "the poison is parked", func() bool { letters = p.deadLetters("inventory"); return len(letters) == 1 })
	id := slices.Collect(maps.Keys(letters))[0]
	if letters[id] == "" {
		t.Error("nobody knows why")
	}
	key := p.secrets.OperatorKey
	// A redrive tries again. The poison is still poison, so there is a dead letter again, and one only.
	p.operator(http.MethodPost, "/ops/inventory/dead-letters/"+id+"/redrive", "redrive-1", nil, nil)
	eventually(t, 20*time.Second, "the poison is parked again", func() bool {
		letters = p.deadLetters("inventory")
		_, old := letters[id]
		return len(letters) == 1 && !old
	})
	p.call(http.MethodPost, "/ops/inventory/dead-letters/"+id+"/redrive", key, "redrive-2", nil).problem(t, http.StatusNotFound)
	again := p.call(http.MethodPost, "/ops/inventory/dead-letters/"+id+"/redrive", key, "redrive-1", nil)
	if again.status != http.StatusOK || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("the repeat of the redrive: %d %s", again.status, again.body)
	}
	// Orders go on all the while: only the poison's aggregate is held.
	p.buy("u-1", "r-1", "CUP", 1)

	id = slices.Collect(maps.Keys(letters))[0]
	discard := "/ops/inventory/dead-letters/" + id + "/discard"
	p.call(http.MethodPost, discard, key, "d-1", map[string]string{"reason": ""}).problem(t, http.StatusUnprocessableEntity)
	p.operator(http.MethodPost, discard, "d-2", map[string]string{"reason": "poison of a test"}, nil)
	if left := p.deadLetters("inventory"); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
	p.call(http.MethodPost, discard, key, "d-3", map[string]string{"reason": "once more"}).problem(t, http.StatusNotFound)
	p.call(http.MethodPost, "/ops/inventory/dead-letters/nothing/discard", key, "d-4", map[string]string{"reason": "no such"}).problem(t, http.StatusNotFound)
	for _, service := range []string{"coupon", "points", "shipping", "ledger", "notification"} {
		var others map[string]string
		eventually(t, 20*time.Second, "the poison is parked in "+service, func() bool { others = p.deadLetters(service); return len(others) == 1 })
		for id := range others {
			p.operator(http.MethodPost, "/ops/"+service+"/dead-letters/"+id+"/discard", "d-"+service, map[string]string{"reason": "poison"}, nil)
		}
	}
	p.settled(serviceNames()...)
	p.converged()
}

// effectsOf counts the rows of what was done, in every service of the folder.
func effectsOf(t *testing.T, dir string) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, service := range serviceNames() {
		db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, service+".db")+"?_pragma=busy_timeout(5000)")
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range []string{"effect", "machine_transition WHERE machine <> 'ops.sent'", "outbox_event", "inbox_mark", "outside_call"} {
			var n int
			if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+table).Scan(&n); err != nil {
				t.Fatal(errors.Join(err, db.Close()))
			}
			counts[service+" "+table] = n
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return counts
}

func TestReplayChangesNothing(t *testing.T) {
	t.Parallel()
	p := startPlatform(t, t.TempDir(), quickly()...)
	p.stock("CUP", 500, 10)
	began := time.Now().Add(-time.Minute).UTC()
	p.buy("u-1", "r-1", "CUP", 2)
	p.settled(serviceNames()...)
	before := effectsOf(t, p.dir)
	sent := 0
	for _, service := range serviceNames() {
		var again struct{ Events int }
		p.operator(http.MethodPost, "/ops/"+service+"/replay", "replay", map[string]any{"since": began}, &again)
		sent += again.Events
	}
	if sent < 10 {
		t.Errorf("only %d events were sent again", sent)
	}
	p.settled(serviceNames()...)
	same(t, before, effectsOf(t, p.dir))
	var none struct{ Events int }
	p.operator(http.MethodPost, "/ops/order/replay", "replay-2", map[string]any{"since": time.Now().Add(time.Hour).UTC()}, &none)
	if none.Events != 0 {
		t.Errorf("%d events were written in the future", none.Events)
	}
	p.end(0)

	// The broker drops what it was sent a moment before. Without its folder it knows nothing, and everything is applied again.
	if err := os.RemoveAll(filepath.Join(p.dir, brokerFolder)); err != nil {
		t.Fatal(err)
	}
	p = startPlatform(t, p.dir, quickly()...)
	eventually(t, 20*time.Second, "the events come again", func() bool { return p.duplicates() >= 15 })
	p.settled(serviceNames()...)
	same(t, before, effectsOf(t, p.dir))
	p.converged()
}

func same(t *testing.T, before, after map[string]int) {
	t.Helper()
	for what, n := range before {
		if after[what] != n {
			t.Errorf("%s: %d rows before, %d after", what, n, after[what])
		}
	}
}

// duplicates is how many events the consumers had applied before.
func (p *running) duplicates() int64 {
	p.t.Helper()
	var sum int64
	for _, service := range serviceNames() {
		var s struct{ Duplicates int64 }
		p.operator(http.MethodGet, "/ops/"+service+"/stats", "", nil, &s)
		sum += s.Duplicates
	}
	return sum
}

// checked is the JSON of check.
type checked struct {
	Equations []struct {
		Name            string
		Checked, Broken int
		Detail          string
	}
}

func TestCheckTellsWhatIsBroken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startPlatform(t, dir, quickly()...)
	p.stock("CUP", 500, 10)
	p.buy("u-1", "r-1", "CUP", 2)
	p.settled(serviceNames()...)
	p.converged() // while it runs
	p.end(0)

	before := fingerprintOfDatabases(t, dir)
	whole := runProgram(t.Context(), "check", "--data", dir, "--json", "--settle", "0s")
	var c checked
	if err := json.Unmarshal([]byte(whole.out.String()), &c); err != nil || whole.code != 0 || len(c.Equations) < 10 {
		t.Errorf("code %d, %v: %s%s", whole.code, err, whole.out.String(), whole.err.String())
	}
	if r := runProgram(t.Context(), "check", "--data", dir); r.code != 0 || strings.Count(r.out.String(), "\n") <= len(c.Equations) {
		t.Errorf("code %d: %s%s", r.code, r.out.String(), r.err.String())
	}
	if fingerprintOfDatabases(t, dir) != before {
		t.Error("the check has changed a database")
	}

	change(t, filepath.Join(dir, "inventory.db"), "UPDATE stock SET on_hand = on_hand + 1")
	damaged := runProgram(t.Context(), "check", "--data", dir, "--json", "--settle", "0s")
	c = checked{}
	if err := json.Unmarshal([]byte(damaged.out.String()), &c); err != nil || damaged.code != 1 || !strings.Contains(damaged.err.String(), "not converged") {
		t.Errorf("code %d, %v: %s%s", damaged.code, err, damaged.out.String(), damaged.err.String())
	}
	broken := 0
	for _, e := range c.Equations {
		if e.Broken > 0 {
			broken++
			if !strings.Contains(e.Detail, "CUP") {
				t.Errorf("%s does not name the SKU: %s", e.Name, e.Detail)
			}
		}
	}
	if broken == 0 {
		t.Error("no equation is broken")
	}
	text := runProgram(t.Context(), "check", "--data", dir, "--settle", "0s")
	if text.code != 1 || !strings.Contains(text.out.String(), "CUP") {
		t.Errorf("code %d: %s", text.code, text.out.String())
	}

	refused(t, 1, []string{"order.db"}, "check", "--data", filepath.Join(dir, "nothing"))
	refused(t, 1, []string{"nothing.db"}, "check", "--data", dir, "--world", filepath.Join(dir, "nothing.db"))
	refused(t, 1, []string{"secrets.json"}, "check", "--data", dir, "--world", filepath.Join(dir, secretsFile))
}

// The timeout of an order that was paid is due later and does nothing. On a platform that was stopped before, it is not late.
func TestWhatBecomesDueAfterAStopIsNotOverdue(t *testing.T) {
	t.Parallel()
	p := startPlatform(t, t.TempDir(), append(quickly(), "--payment-window", "3s")...)
	p.stock("CUP", 500, 10)
	due := time.Now().Add(3 * time.Second)
	o := p.buy("u-1", "r-1", "CUP", 1)
	p.settled(serviceNames()...)
	p.end(0)
	for _, service := range serviceNames() { // however slow this machine is, the platform seems to have stopped before
		stopped := due.Add(-time.Second)
		if err := os.Chtimes(filepath.Join(p.dir, service+".db"), stopped, stopped); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 10*time.Second, "the order's timeout is over", func() bool { return time.Now().After(due.Add(3 * time.Second)) })
	if r := runProgram(t.Context(), "check", "--data", p.dir); r.code != 0 {
		t.Errorf("order %s: %s", o.OrderNo, r.out.String())
	}
}

// report is the JSON of demo: the names that stay.
type report struct {
	Verdict     string
	Reasons     []string
	Orders      map[string]int
	Effects     map[string]int
	Duplicates  int `json:"duplicates_absorbed"`
	Faults      map[string]int
	Convergence struct{ P50, P99, Max float64 } `json:"convergence_ms"`
	Equations   []struct {
		Name            string
		Checked, Broken int
	}
	RowsTotal   *int `json:"rows_total"`
	RowsUsed    *int `json:"rows_used"`
	RowsSkipped *int `json:"rows_skipped"`
	Skipped     []struct {
		Line   int
		Reason string
	}
	Amount *struct{ File, Orders, Skipped int64 } `json:"amount_minor"`
}

func (r report) fault(kinds ...string) (missing []string) {
	for _, kind := range kinds {
		if r.Faults[kind] == 0 {
			missing = append(missing, kind)
		}
	}
	return missing
}

func sumOf(counts map[string]int) (sum int) {
	for _, n := range counts {
		sum += n
	}
	return sum
}

func demo(t *testing.T, args ...string) (report, *finished) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	f := runChild(ctx, t, append([]string{"demo", "--json"}, args...)...)
	var r report
	if err := json.Unmarshal([]byte(f.out), &r); err != nil {
		t.Fatalf("%v: %s%s", err, f.out, f.err)
	}
	return r, f
}

func TestTheDemoConvergesThroughAKillAndTellsNoSecrets(t *testing.T) {
	t.Parallel()
	keep := filepath.Join(t.TempDir(), "kept")
	r, f := demo(t, "--count", "30", "--kills", "1", "--buyers", "16", "--keep", keep)
	if f.code != 0 || r.Verdict != drill.Converged || len(r.Reasons) > 0 {
		t.Errorf("code %d, %s, %v\n%s", f.code, r.Verdict, r.Reasons, f.err)
	}
	if n := sumOf(r.Orders); n != 30 {
		t.Errorf("%d orders: %v", n, r.Orders)
	}
	missing := r.fault(drill.FaultKill, drill.FaultWrongAmount, drill.FaultWrongMerchant, drill.FaultLatePayment, drill.FaultSecondPayment,
		drill.FaultDeclined, drill.FaultPoison, "notice repeated", "notice forged")
	if len(missing) > 0 {
		t.Errorf("the day had no %v: %v", missing, r.Faults)
	}
	if len(r.Equations) < 10 || r.Duplicates == 0 || sumOf(r.Effects) == 0 || r.RowsTotal != nil {
		t.Errorf("%+v", r)
	}
	secrets, err := loadSecrets(keep)
	if err != nil {
		t.Fatal(err)
	}
	keepsSecrets(t, secrets, f.out+f.err+textOf(t, filepath.Join(keep, "platform.log")))
	if r := runProgram(t.Context(), "check", "--data", keep); r.code != 0 {
		t.Errorf("what was kept: %d %s%s", r.code, r.out.String(), r.err.String())
	}
}

func TestTheDemoAccountsForEveryRowOfAFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "orders.csv")
	write(t, file, `InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country
536365,85123A,LANTERN,6,2010-12-01 08:26:00,2.55,17850.0,United Kingdom
536365,85123A,LANTERN,2,2010-12-01 08:26:00,2.55,17850.0,United Kingdom
536366,71053,"HEART, WHITE",1,2010-12-01 08:28:00,3.39,,United Kingdom
C536367,85123A,LANTERN,-1,2010-12-01 09:26:00,2.55,17850.0,United Kingdom
C536368,22632,NEVER BOUGHT,-1,2010-12-01 09:27:00,1.85,17850.0,United Kingdom
536369,POST,POSTAGE,1,2010-12-01 09:28:00,18.00,12583.0,France
`)
	r, f := demo(t, "--orders", file, "--kills", "0", "--faults", "0")
	if f.code != 0 || r.Verdict != drill.Converged {
		t.Fatalf("code %d, %s, %v\n%s", f.code, r.Verdict, r.Reasons, f.err)
	}
	if r.RowsTotal == nil || r.Amount == nil || *r.RowsTotal != 6 || *r.RowsUsed+*r.RowsSkipped != 6 || len(r.Skipped) != *r.RowsSkipped {
		t.Fatalf("%s", f.out)
	}
	if want := int64(6*255 + 2*255 + 339 - 255 - 185 + 1800); r.Amount.File != want || r.Amount.Orders+r.Amount.Skipped != want {
		t.Errorf("money %+v, want %d", *r.Amount, want)
	}
	for _, s := range r.Skipped {
		if s.Line < 2 || s.Line > 7 || s.Reason == "" {
			t.Errorf("skipped %+v", s)
		}
	}
}

// A demo that cannot converge says BROKEN and why, and is exit code 1.
func TestADemoThatDoesNotConvergeInTimeIsBroken(t *testing.T) {
	t.Parallel()
	r, f := demo(t, "--count", "20", "--kills", "0", "--timeout", "2s") // an abandoned order alone takes 15 s
	if f.code != 1 || r.Verdict != drill.Broken || len(r.Reasons) == 0 || !strings.Contains(f.err, "did not converge") {
		t.Errorf("code %d, %s, %v\n%s", f.code, r.Verdict, r.Reasons, f.err)
	}
	if !strings.Contains(fmt.Sprint(r.Reasons), "convergence") && !strings.Contains(fmt.Sprint(r.Reasons), "buyers") {
		t.Errorf("reasons %v", r.Reasons)
	}
}
