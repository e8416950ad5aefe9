package drill

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/convergo/convergo/drill/check"
)

// Verdict of a drill.
const (
	Converged = "CONVERGED"
	Broken    = "BROKEN"
)

// Report is what a drill found. The JSON names are stable: scripts read them.
type Report struct {
	Verdict            string           `json:"verdict"` // CONVERGED or BROKEN
	Reasons            []string         `json:"reasons,omitempty"`
	Seed               uint64           `json:"seed"`
	Orders             map[string]int   `json:"orders"`  // by final state
	Effects            map[string]int   `json:"effects"` // by kind
	DuplicatesAbsorbed int              `json:"duplicates_absorbed"`
	Faults             map[string]int   `json:"faults"` // by kind
	Convergence        Convergence      `json:"convergence_ms"`
	Equations          []check.Equation `json:"equations"`
	Elapsed            float64          `json:"elapsed_s"`
	*FileAccount
}

// Convergence is the time, in milliseconds, from the last fault that touched an effect to the moment at which it was
// there: from a failed handler or a SIGKILL to the event's being applied, and from the arrival of money that pays no order
// to its return.
type Convergence struct {
	Effects int     `json:"effects"` // that a fault touched
	P50     float64 `json:"p50"`
	P99     float64 `json:"p99"`
	Max     float64 `json:"max"`
}

// FileAccount tells what became of every row of an orders file.
type FileAccount struct {
	RowsTotal   int           `json:"rows_total"`
	RowsUsed    int           `json:"rows_used"`
	RowsSkipped int           `json:"rows_skipped"`
	Skipped     []SkippedRow  `json:"skipped"`
	Amount      AmountAccount `json:"amount_minor"`
}

// AmountAccount adds up: File = Orders + Skipped, in minor units.
type AmountAccount struct {
	File    int64 `json:"file"`
	Orders  int64 `json:"orders"`
	Skipped int64 `json:"skipped"`
}

// Account of the file's rows.
func (r *Retail) Account() *FileAccount {
	skipped := r.Skipped
	if skipped == nil {
		skipped = []SkippedRow{}
	}
	return &FileAccount{r.RowsTotal, r.RowsUsed, len(r.Skipped), skipped, AmountAccount{r.AmountFile, r.AmountOrders, r.AmountSkipped}}
}

// NewConvergence takes the percentiles (nearest rank) of waits.
func NewConvergence(waits []time.Duration) Convergence {
	if len(waits) == 0 {
		return Convergence{}
	}
	slices.Sort(waits)
	rank := func(percent int) float64 {
		i := (len(waits)*percent + 99) / 100
		return float64(waits[max(i, 1)-1].Microseconds()) / 1000
	}
	return Convergence{len(waits), rank(50), rank(99), rank(100)}
}

// Decide sets the verdict: converged only when equations were checked, none of them is broken and nothing else was found
// wrong. Calling it again changes nothing.
func (r *Report) Decide() {
	if r.Verdict != "" {
		return
	}
	checked := 0
	for _, e := range r.Equations {
		checked += e.Checked
		if e.Broken > 0 {
			r.Reasons = append(r.Reasons, fmt.Sprintf("equation %q: %d broken, %d checked: %s", e.Name, e.Broken, e.Checked, e.Detail))
		}
	}
	switch {
	case len(r.Equations) == 0:
		r.Reasons = append(r.Reasons, "no equation was checked")
	case checked == 0:
		r.Reasons = append(r.Reasons, "the equations had nothing to look at: the platform did nothing")
	}
	r.Verdict = Converged
	if len(r.Reasons) > 0 {
		r.Verdict = Broken
	}
}

// WriteJSON for machines.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteText for people.
func (r *Report) WriteText(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format, args...) } // Flush below reports a failed write
	counts := func(title string, m map[string]int) {
		p("\n%s\n", title)
		for _, k := range byCount(m) {
			p("  %s\t%d\n", k, m[k])
		}
	}
	counts("Orders by final state", r.Orders)
	counts("Faults", r.Faults)
	counts("Effects", r.Effects)
	p("\nDuplicates absorbed\t%d\n", r.DuplicatesAbsorbed)
	c := r.Convergence
	p("From the last fault to convergence\tp50 %.0f ms, p99 %.0f ms, max %.0f ms (%d effects)\n", c.P50, c.P99, c.Max, c.Effects)
	if f := r.FileAccount; f != nil {
		p("\nRows of the file\t%d = %d used + %d skipped\n", f.RowsTotal, f.RowsUsed, f.RowsSkipped)
		p("Money of the file\t%s = %s orders + %s skipped\n", pence(f.Amount.File), pence(f.Amount.Orders), pence(f.Amount.Skipped))
		p("%s", skippedRows(f.Skipped))
	}
	p("\n%s", check.Table(r.Equations))
	p("\nseed %d, %.1f s\n\n%s\n", r.Seed, r.Elapsed, r.Verdict)
	for _, reason := range r.Reasons {
		p("  %s\n", reason)
	}
	return out.Flush()
}

const skippedShown = 5 // of the file's skipped rows in the text report; the JSON report has all

// skippedRows tells how many rows were skipped for which reason, and the first few. What stands in parentheses is about the
// row and no reason of its own.
func skippedRows(rows []SkippedRow) string {
	if len(rows) == 0 {
		return ""
	}
	counts := map[string]int{}
	for _, row := range rows {
		reason, _, _ := strings.Cut(row.Reason, " (")
		counts[reason]++
	}
	var b strings.Builder
	for _, reason := range byCount(counts) {
		fmt.Fprintf(&b, "  %s\t%d\n", reason, counts[reason])
	}
	for _, row := range rows[:min(len(rows), skippedShown)] {
		fmt.Fprintf(&b, "    line %d: %s\n", row.Line, row.Reason)
	}
	if more := len(rows) - skippedShown; more > 0 {
		fmt.Fprintf(&b, "    and %d more rows; --json lists all\n", more)
	}
	return b.String()
}

// byCount are the keys, most first.
func byCount(m map[string]int) []string {
	return slices.SortedFunc(maps.Keys(m), func(a, b string) int { return cmp.Or(m[b]-m[a], strings.Compare(a, b)) })
}

func pence(minor int64) string {
	sign := ""
	if minor < 0 {
		sign, minor = "-", -minor
	}
	return fmt.Sprintf("%s%d.%02d", sign, minor/100, minor%100)
}
