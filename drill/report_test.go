package drill

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo/drill/check"
)

func aReport() *Report {
	return &Report{
		Seed: 7, Orders: map[string]int{"COMPLETED": 3, "CANCELED": 1}, Effects: map[string]int{"stock.deduct": 4}, DuplicatesAbsorbed: 12,
		Faults: map[string]int{FaultKill: 1}, Convergence: Convergence{Effects: 2, P50: 1.5, P99: 3, Max: 3}, Elapsed: 4.5,
		Equations: []check.Equation{{Name: "stock is the sum of its flows", Checked: 5}},
	}
}

func TestTheJSONReportIsWhatScriptsRead(t *testing.T) {
	for name, account := range map[string]*FileAccount{
		"report.json": nil,
		"report_of_a_file.json": {RowsTotal: 3, RowsUsed: 2, RowsSkipped: 1, Skipped: []SkippedRow{{Line: 4, Reason: "quantity 0", Amount: 5}},
			Amount: AmountAccount{File: 10, Orders: 7, Skipped: 3}},
	} {
		r := aReport()
		r.FileAccount = account
		r.Decide()
		var got bytes.Buffer
		if err := r.WriteJSON(&got); err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile("testdata/" + name)
		if err != nil || got.String() != string(want) {
			t.Errorf("%s: %v; the report is now\n%s", name, err, got.String())
		}
	}
}

func TestAFilesFieldsAreOnlyInTheReportOfAFile(t *testing.T) {
	keys := func(account *FileAccount) []string {
		r := aReport()
		r.FileAccount = account
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(text, &fields); err != nil {
			t.Fatal(err)
		}
		return slices.Sorted(maps.Keys(fields))
	}
	without, with := keys(nil), keys((&Retail{}).Account())
	for _, field := range []string{"rows_total", "rows_used", "rows_skipped", "skipped", "amount_minor"} {
		if slices.Contains(without, field) || !slices.Contains(with, field) {
			t.Errorf("%s: without a file %t, with one %t", field, slices.Contains(without, field), slices.Contains(with, field))
		}
	}
	text, err := json.Marshal((&Retail{}).Account())
	if err != nil || !strings.Contains(string(text), `"skipped":[]`) {
		t.Errorf("no skipped rows are a list, too: %s %v", text, err)
	}
}

func TestTheVerdictIsConvergedOnlyWhenEverythingWasCheckedAndNothingIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*Report)
		verdict string
		reason  string
	}{
		"nothing wrong":      {func(*Report) {}, Converged, ""},
		"no equation":        {func(r *Report) { r.Equations = nil }, Broken, "no equation was checked"},
		"nothing to check":   {func(r *Report) { r.Equations[0].Checked = 0 }, Broken, "the platform did nothing"},
		"one broken":         {func(r *Report) { r.Equations[0].Broken, r.Equations[0].Detail = 2, "HOT-1: on hand 3 / 4" }, Broken, "HOT-1: on hand 3 / 4"},
		"a buyer in trouble": {func(r *Report) { r.Reasons = []string{"buyers: lost"} }, Broken, "buyers: lost"},
	} {
		r := aReport()
		c.change(r)
		r.Decide()
		reasons := strings.Join(r.Reasons, "\n")
		if r.Verdict != c.verdict || !strings.Contains(reasons, c.reason) || (c.reason == "") != (reasons == "") {
			t.Errorf("%s: %s because of %q", name, r.Verdict, reasons)
		}
		r.Decide()
		if again := strings.Join(r.Reasons, "\n"); again != reasons {
			t.Errorf("%s: deciding again adds %q", name, again)
		}
	}
}

func TestTheTextReportShowsSkippedRowsByReason(t *testing.T) {
	r := aReport()
	r.FileAccount = &FileAccount{RowsTotal: 20, RowsUsed: 12, RowsSkipped: 8, Amount: AmountAccount{File: -5, Orders: 100, Skipped: -105}}
	for i := range 8 {
		r.Skipped = append(r.Skipped, SkippedRow{Line: i + 2, Reason: "price 0 (smashed)"})
	}
	r.Skipped[7].Reason = "quantity 0"
	r.Equations = append(r.Equations, check.Equation{Name: "every hold ends once", Checked: 9, Broken: 2, Detail: "A 1: odd; B 2: even"})
	r.Decide()
	var out bytes.Buffer
	if err := r.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, want := range []string{
		"20 = 12 used + 8 skipped", "-0.05 = 1.00 orders + -1.05 skipped", "line 2: price 0 (smashed)", "line 6: price 0", "and 3 more rows",
		"BROKEN", "  A 1: odd\n  B 2: even\n", "seed 7, 4.5 s",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
	for _, reason := range []struct{ name, n string }{{"price 0", "7"}, {"quantity 0", "1"}} {
		found := slices.ContainsFunc(strings.Split(text, "\n"), func(line string) bool {
			return slices.Equal(strings.Fields(line), append(strings.Fields(reason.name), reason.n))
		})
		if !found {
			t.Errorf("%q is not counted as %s:\n%s", reason.name, reason.n, text)
		}
	}
	if strings.Contains(text, "line 7:") {
		t.Error("the report lists every skipped row")
	}
}

func TestEachFaultHasOneNameAndIsCountedOnce(t *testing.T) {
	r := &Report{}
	r.CountFaults(map[string]int64{"wrong_amount": 3, "payment_declined": 2, "notice_copy": 5, "answer_lost": 0, "brand_new": 1},
		[]Fault{{Kind: FaultHandlerAfter}}, []Fault{{Kind: FaultWrongAmount}, {Kind: FaultWrongAmount}})
	want := map[string]int{"notice repeated": 5, "brand new": 1, FaultHandlerAfter: 1, FaultWrongAmount: 2}
	if !maps.Equal(r.Faults, want) {
		t.Errorf("%v, want %v", r.Faults, want)
	}
	for kind, name := range worldFaults() {
		if strings.Contains(name, "_") {
			t.Errorf("%s is called %q", kind, name)
		}
	}
}

func TestPercentilesAreNearestRanks(t *testing.T) {
	var waits []time.Duration
	for i := 200; i > 0; i-- { // unsorted on purpose
		waits = append(waits, time.Duration(i)*time.Millisecond)
	}
	if got := NewConvergence(waits); got != (Convergence{200, 100, 198, 200}) {
		t.Errorf("%+v", got)
	}
	if got := NewConvergence([]time.Duration{1500 * time.Microsecond}); got != (Convergence{1, 1.5, 1.5, 1.5}) {
		t.Errorf("of one: %+v", got)
	}
	if got := NewConvergence([]time.Duration{2 * time.Second, time.Second}); got != (Convergence{2, 1000, 2000, 2000}) {
		t.Errorf("of two: %+v", got)
	}
	if got := NewConvergence(nil); got != (Convergence{}) {
		t.Errorf("of none: %+v", got)
	}
}

func TestAWaitBeginsWithTheLastFaultThatTouchedTheEffect(t *testing.T) {
	at := func(s int) time.Time { return time.Date(2030, 1, 1, 0, 0, s, 0, time.UTC) }
	delivery := func(due, applied int) []check.Delivery {
		return []check.Delivery{{Consumer: "points", Key: "OrderPaid:1", Due: at(due), Applied: at(applied)}}
	}
	failed := func(consumer, key string, s int) Fault {
		return Fault{Kind: FaultHandlerAfter, Consumer: consumer, Key: key, At: at(s)}
	}
	for name, c := range map[string]struct {
		deliveries []check.Delivery
		kills      []time.Time
		faults     []Fault
		want       []time.Duration
	}{
		"undisturbed":             {deliveries: delivery(1, 9)},
		"killed while under way":  {delivery(1, 9), []time.Time{at(4)}, nil, []time.Duration{5 * time.Second}},
		"killed twice":            {delivery(1, 9), []time.Time{at(6), at(4)}, nil, []time.Duration{3 * time.Second}},
		"killed before it was":    {delivery(5, 9), []time.Time{at(4)}, nil, nil},
		"killed afterwards":       {delivery(1, 9), []time.Time{at(10)}, nil, nil},
		"failed":                  {delivery(1, 9), nil, []Fault{failed("points", "OrderPaid:1", 3)}, []time.Duration{6 * time.Second}},
		"failed twice":            {delivery(1, 9), nil, []Fault{failed("points", "OrderPaid:1", 7), failed("points", "OrderPaid:1", 3)}, []time.Duration{2 * time.Second}},
		"failed, then killed":     {delivery(1, 9), []time.Time{at(5)}, []Fault{failed("points", "OrderPaid:1", 3)}, []time.Duration{4 * time.Second}},
		"killed, then failed":     {delivery(1, 9), []time.Time{at(2)}, []Fault{failed("points", "OrderPaid:1", 3)}, []time.Duration{6 * time.Second}},
		"another consumer failed": {delivery(1, 9), nil, []Fault{failed("ledger", "OrderPaid:1", 3)}, nil},
		"another event failed":    {delivery(1, 9), nil, []Fault{failed("points", "OrderPaid:2", 3)}, nil},
		"a fault of no event":     {delivery(1, 9), nil, []Fault{{Kind: FaultRace, At: at(3)}}, nil},
	} {
		if got := Waits(c.deliveries, nil, c.kills, c.faults); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	returned := []time.Duration{time.Second}
	if got := Waits(delivery(1, 9), returned, []time.Time{at(4)}, nil); !slices.Equal(got, []time.Duration{time.Second, 5 * time.Second}) {
		t.Errorf("money that went back counts as well: %v", got)
	}
	if len(returned) != 1 || cap(returned) != 1 {
		t.Error("the list was changed")
	}
}
