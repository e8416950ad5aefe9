package drill

import (
	"io"
	"strings"
	"testing"
)

const retailHeader = "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country\n"

// A small invented shop morning with one of each thing that real files have.
const retailMorning = retailHeader +
	`900001,10A,"CANDLE, RED ",6,2030-01-07 08:26:00,2.55,71.0,United Kingdom
900001,10A,"CANDLE, RED ",2,2030-01-07 08:26:00,2.55,71.0,United Kingdom
900002,11,"SIGN 7"" WIDE",3,2030-01-07 08:20:00,0.29,,France
900001,POST,POSTAGE,1,2030-01-07 08:26:00,18,71.0,United Kingdom
900003,12,,56,2030-01-07 09:00:00,0.0,,United Kingdom
900004,12,smashed,-10,2030-01-07 09:01:00,0.0,,United Kingdom
C900005,10A,"CANDLE, RED ",-5,2030-01-07 10:00:00,2.55,71.0,United Kingdom
C900005,10A,"CANDLE, RED ",-1,2030-01-07 10:00:00,2.55,71.0,United Kingdom
C900006,D,Discount,-1,2030-01-07 10:05:00,27.5,71.0,United Kingdom
C900007,99,UNKNOWN,-1,2030-01-07 10:06:00,1.25,71.0,United Kingdom
A900008,B,Adjust bad debt,1,2030-01-07 10:07:00,-11062.06,,United Kingdom
900009,10A,"CANDLE, RED ",1,2030-01-07 11:00:00,2.95,72.0,United Kingdom
900010,PADS,PADS,1,2030-01-07 11:01:00,0.001,73.0,United Kingdom
`

func TestEveryRowOfARetailFileIsAccountedForToThePenny(t *testing.T) {
	for _, limit := range []int{0, 1, 2} {
		r, err := ReadRetail(strings.NewReader(retailMorning), limit)
		if err != nil {
			t.Fatal(err)
		}
		if r.RowsTotal != 13 || r.RowsUsed+len(r.Skipped) != r.RowsTotal {
			t.Errorf("limit %d: %d rows, %d used, %d skipped", limit, r.RowsTotal, r.RowsUsed, len(r.Skipped))
		}
		if r.AmountOrders+r.AmountSkipped != r.AmountFile {
			t.Errorf("limit %d: %d + %d is not %d", limit, r.AmountOrders, r.AmountSkipped, r.AmountFile)
		}
		var sum int64
		for _, o := range r.Orders {
			sum += o.Amount()
			for _, back := range o.Return {
				sum -= back.Quantity * o.Lines[back.Line].Price
			}
		}
		if sum != r.AmountOrders {
			t.Errorf("limit %d: the orders say %d, the account says %d", limit, sum, r.AmountOrders)
		}
	}
}

func TestARetailFileBecomesOrdersInTimeOrder(t *testing.T) {
	r, err := ReadRetail(strings.NewReader(retailMorning), 0)
	if err != nil {
		t.Fatal(err)
	}
	var refs []string
	for _, o := range r.Orders {
		refs = append(refs, o.Ref)
	}
	if got := strings.Join(refs, " "); got != "900002 900001 900009" {
		t.Errorf("orders %s", got)
	}
	first := r.Orders[1]
	if len(first.Lines) != 3 || first.Amount() != 8*255+1800 || first.Behaviour != ReturnsSome {
		t.Errorf("order 900001: %+v", first)
	}
	// Five fit the first line of six only; the one left on it takes the single piece, or the line of two does.
	var back int64
	for _, b := range first.Return {
		back += b.Quantity
	}
	if back != 6 {
		t.Errorf("%d pieces come back, not 6: %+v", back, first.Return)
	}
	if r.Orders[0].User != "guest-900002" {
		t.Errorf("the guest is %q", r.Orders[0].User)
	}
	if p := r.Products["10A"]; p.Stock != 9 || p.Prices["p255"] != 255 || p.Prices["p295"] != 295 {
		t.Errorf("product 10A: %+v", p)
	}
	reasons := map[int]string{
		6: "price 0", 7: "stock adjustment", 10: "discount", 11: "no earlier order", 12: "accounting adjustment", 14: "not whole pence",
	}
	for _, s := range r.Skipped {
		if !strings.Contains(s.Reason, reasons[s.Line]) || reasons[s.Line] == "" {
			t.Errorf("line %d is skipped because %q", s.Line, s.Reason)
		}
	}
}

func TestABrokenRetailFileNamesTheLineAndTheColumn(t *testing.T) {
	good := "900001,10A,CANDLE,6,2030-01-07 08:26:00,2.55,71.0,UK\n"
	with := func(row string) string { return retailHeader + good + row + "\n" }
	for name, c := range map[string]struct{ file, want string }{
		"empty":             {"", "line 1: the file is empty"},
		"no header":         {good, "line 1, column 1"},
		"only a header":     {retailHeader, "line 2"},
		"missing column":    {with("900001,10A,CANDLE,6,2030-01-07 08:26:00,2.55,71.0"), "line 3: 7 columns"},
		"open quote":        {with(`900001,10A,"CANDLE,6,2030-01-07 08:26:00,2.55,71.0,UK`), "line 3"},
		"quantity":          {with("900001,10A,CANDLE,six,2030-01-07 08:26:00,2.55,71.0,UK"), "line 3, column Quantity"},
		"huge quantity":     {with("900001,10A,CANDLE,9223372036854775808,2030-01-07 08:26:00,2.55,71.0,UK"), "line 3, column Quantity"},
		"price exponent":    {with("900001,10A,CANDLE,6,2030-01-07 08:26:00,1e2,71.0,UK"), "line 3, column UnitPrice"},
		"price thousands":   {with(`900001,10A,CANDLE,6,2030-01-07 08:26:00,"1,000.00",71.0,UK`), "line 3, column UnitPrice"},
		"price huge":        {with("900001,10A,CANDLE,6,2030-01-07 08:26:00,99999999999999999999,71.0,UK"), "line 3, column UnitPrice"},
		"date":              {with("900001,10A,CANDLE,6,07/01/2030,2.55,71.0,UK"), "line 3, column InvoiceDate"},
		"customer":          {with("900001,10A,CANDLE,6,2030-01-07 08:26:00,2.55,bob,UK"), "line 3, column CustomerID"},
		"not UTF-8":         {with("900001,10A,CAND\xffLE,6,2030-01-07 08:26:00,2.55,71.0,UK"), "line 3, column Description: is not UTF-8"},
		"no invoice number": {with(",10A,CANDLE,6,2030-01-07 08:26:00,2.55,71.0,UK"), "line 3, column InvoiceNo"},
		"long field":        {with("900001,10A," + strings.Repeat("x", 2000) + ",6,2030-01-07 08:26:00,2.55,71.0,UK"), "line 3, column Description: is too long"},
	} {
		r, err := ReadRetail(strings.NewReader(c.file), 0)
		if err == nil || !strings.Contains(err.Error(), c.want) || r != nil {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestAFileWithoutAnEndIsRefusedAfterTheLongestRow(t *testing.T) {
	good := retailHeader + strings.Repeat("900001,10A,CANDLE,6,2030-01-07 08:26:00,2.55,71.0,UK\n", 3_000) // more than one row may have
	for name, c := range map[string]struct{ begin, repeat, want string }{
		"zeros instead of a header": {"", "\x00", "line 1: the row is longer than 65536 bytes"},
		"zeros instead of a row":    {good, "\x00", "line 3002: the row is longer than 65536 bytes"},
		"a quote that stays open":   {good + `900001,10A,"`, "CANDLE\n", "line 3002: the row is longer than 65536 bytes"},
	} {
		endless := &endless{text: c.repeat}
		r, err := ReadRetail(io.MultiReader(strings.NewReader(c.begin), endless), 0)
		if err == nil || !strings.Contains(err.Error(), c.want) || r != nil {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if endless.read > 100_000 {
			t.Errorf("%s: %d bytes were read", name, endless.read)
		}
	}
	if _, err := ReadRetail(strings.NewReader(good), 0); err != nil {
		t.Error(err)
	}
}

// endless repeats a text, up to a size that a test can bear.
type endless struct {
	text string
	read int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.read > 10<<20 {
		return 0, io.EOF
	}
	n := copy(p, strings.Repeat(e.text, len(p)/len(e.text)+1))
	e.read += n
	return n, nil
}

func FuzzARetailFileNeverPanicsAndAlwaysAddsUp(f *testing.F) {
	f.Add(retailMorning)
	f.Add(retailHeader + "1,2,3,4,5,6,7,8\n")
	f.Fuzz(func(t *testing.T, file string) {
		r, err := ReadRetail(strings.NewReader(file), 0)
		if err != nil {
			return
		}
		if r.RowsUsed+len(r.Skipped) != r.RowsTotal || r.AmountOrders+r.AmountSkipped != r.AmountFile {
			t.Fatalf("%d + %d of %d rows; %d + %d of %d", r.RowsUsed, len(r.Skipped), r.RowsTotal, r.AmountOrders, r.AmountSkipped, r.AmountFile)
		}
	})
}

func TestTheSameSeedMakesTheSameDay(t *testing.T) {
	a, b, c := Generate(7, 200), Generate(7, 200), Generate(8, 200)
	same := func(x, y Day) bool {
		if len(x.Orders) != len(y.Orders) {
			return false
		}
		for i := range x.Orders {
			if x.Orders[i].Amount() != y.Orders[i].Amount() || x.Orders[i].Behaviour != y.Orders[i].Behaviour || x.Orders[i].User != y.Orders[i].User {
				return false
			}
		}
		return true
	}
	if !same(a, b) || same(a, c) {
		t.Error("seed 7 twice must agree, seed 8 must differ")
	}
	seen := map[Behaviour]bool{}
	for _, o := range a.Orders {
		seen[o.Behaviour] = true
	}
	if len(seen) != 12 {
		t.Errorf("a day of 200 orders has %d behaviours of 12", len(seen))
	}
}
