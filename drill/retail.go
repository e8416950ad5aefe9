package drill

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Columns of the Online Retail format, in order.
var retailColumns = []string{"InvoiceNo", "StockCode", "Description", "Quantity", "InvoiceDate", "UnitPrice", "CustomerID", "Country"}

// Bounds of a file. They keep a wrong file from filling the memory.
const (
	maxRetailRows  = 1_000_000
	maxRetailField = 1_000
	maxRetailRow   = 64 << 10    // bytes, with quotes and separators
	maxPrice       = 100_000_000 // minor units
	maxQuantity    = 1_000_000
	maxLines       = 2_000
)

// Retail is a day read from a file in the Online Retail format, with every row accounted for:
// RowsTotal = RowsUsed + len(Skipped) and AmountFile = AmountOrders + AmountSkipped.
type Retail struct {
	Day
	RowsTotal, RowsUsed                     int
	Skipped                                 []SkippedRow
	AmountFile, AmountOrders, AmountSkipped int64 // minor units; returns are negative
}

// SkippedRow is a row that became neither an order line nor a return.
type SkippedRow struct {
	Line   int    `json:"line"` // of the file, the header is line 1
	Reason string `json:"reason"`
	Amount int64  `json:"-"`
}

type retailRow struct {
	line                     int
	invoice, sku, user, memo string
	quantity                 int64
	at                       time.Time
	price                    int64 // minor units
	whole                    bool  // the price is whole minor units
}

func (r retailRow) amount() int64 { return r.quantity * r.price }

// ReadRetail reads invoices as orders, in time order. C-invoices become returns against an earlier order of the same
// customer with the same article at the same price and enough pieces left, else they are skipped with the reason.
// With limit > 0 only the first limit invoices are used. An error names the line and the column, and nothing is used.
func ReadRetail(in io.Reader, limit int) (*Retail, error) {
	rows, err := readRows(in)
	if err != nil {
		return nil, err
	}
	r := &Retail{Day: Day{Currency: "GBP", Products: map[string]Product{}}, RowsTotal: len(rows)}
	sort := newRetailSorter(r, limit)
	for _, row := range rows {
		r.AmountFile += row.amount()
		sort.add(row)
	}
	sort.finish()
	return r, nil
}

// rowReader ends with an error where a row does not end: a file that is no table may have no end of line, or no end at all.
type rowReader struct {
	in   io.Reader
	left int // bytes that may come until the row is complete
}

var errRowTooLong = fmt.Errorf("the row is longer than %d bytes, or a quotation mark in it is not closed", maxRetailRow)

func (r *rowReader) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, errRowTooLong
	}
	n, err := r.in.Read(p)
	r.left -= n
	return n, err
}

func readRows(in io.Reader) ([]retailRow, error) {
	bounded := &rowReader{in: in, left: maxRetailRow}
	reader := csv.NewReader(bounded)
	reader.FieldsPerRecord = -1 // counted here, for an error that says what is missing
	reader.ReuseRecord = true
	header, err := reader.Read()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("line 1: the file is empty; its first line must be " + strings.Join(retailColumns, ","))
	}
	if err != nil {
		return nil, csvError(err, 1)
	}
	if len(header) > 0 {
		header[0] = strings.TrimPrefix(header[0], "\ufeff")
	}
	for i, want := range retailColumns {
		if i >= len(header) || header[i] != want {
			return nil, fmt.Errorf("line 1, column %d: the header must be %s", i+1, strings.Join(retailColumns, ","))
		}
	}
	var rows []retailRow
	line := 1
	for {
		bounded.left = maxRetailRow
		record, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, csvError(err, line+1)
		}
		line, _ = reader.FieldPos(0)
		row, err := parseRow(line, record)
		if err != nil {
			return nil, err
		}
		if rows = append(rows, row); len(rows) > maxRetailRows {
			return nil, fmt.Errorf("line %d: more than %d rows; split the file", line, maxRetailRows)
		}
	}
	if len(rows) == 0 {
		return nil, errors.New("line 2: the file has no rows below its header")
	}
	return rows, nil
}

// csvError names the line of an error; line is where the row began that could not be read.
func csvError(err error, line int) error {
	if errors.Is(err, errRowTooLong) {
		return fmt.Errorf("line %d: %w", line, err)
	}
	var parse *csv.ParseError
	if errors.As(err, &parse) {
		return fmt.Errorf("line %d, column %d: %w", parse.Line, parse.Column, parse.Err)
	}
	return err
}

func parseRow(line int, record []string) (retailRow, error) {
	bad := func(column int, format string, args ...any) (retailRow, error) {
		return retailRow{}, fmt.Errorf("line %d, column %s: %s", line, retailColumns[column], fmt.Sprintf(format, args...))
	}
	if len(record) != len(retailColumns) {
		return retailRow{}, fmt.Errorf("line %d: %d columns where %d are expected (%s)", line, len(record), len(retailColumns), strings.Join(retailColumns, ","))
	}
	for i, field := range record {
		if !utf8.ValidString(field) {
			return bad(i, "is not UTF-8")
		}
		if len(field) > maxRetailField {
			return bad(i, "is too long: %d > %d bytes", len(field), maxRetailField)
		}
	}
	row := retailRow{line: line, invoice: strings.TrimSpace(record[0]), memo: strings.TrimSpace(record[2])}
	if !plain(row.invoice) {
		return bad(0, "%q is not an invoice number (1 to 20 letters and digits)", record[0])
	}
	if row.sku = strings.ReplaceAll(strings.TrimSpace(record[1]), " ", "-"); !plain(row.sku) {
		return bad(1, "%q is not a stock code (1 to 20 letters, digits, - and _)", record[1])
	}
	var err error
	if row.quantity, err = strconv.ParseInt(record[3], 10, 64); err != nil || row.quantity < -maxQuantity || row.quantity > maxQuantity {
		return bad(3, "%q is not a whole number between -%d and %d", record[3], maxQuantity, maxQuantity)
	}
	if row.at, err = time.Parse("2006-01-02 15:04:05", record[4]); err != nil {
		return bad(4, "%q is not a time like 2010-12-01 08:26:00", record[4])
	}
	if row.price, row.whole, err = parsePrice(record[5]); err != nil {
		return bad(5, "%q %s", record[5], err)
	}
	if row.user, err = parseCustomer(record[6]); err != nil {
		return bad(6, "%q is not a customer number like 17850 or 17850.0", record[6])
	}
	return row, nil
}

func plain(s string) bool {
	if s == "" || len(s) > 20 {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && r != '-' && r != '_'
	})
}

// parsePrice reads decimal text exactly; no float is involved. A price finer than a penny is cut to whole pence and
// reported as such, so that its row can be skipped and the sums still agree.
func parsePrice(text string) (minor int64, whole bool, err error) {
	digits, negative := strings.CutPrefix(text, "-")
	units, fraction, _ := strings.Cut(digits, ".")
	if units == "" || strings.Trim(units+fraction, "0123456789") != "" || len(units) > 9 || strings.HasSuffix(digits, ".") {
		return 0, false, errors.New("is not a price like 2.55")
	}
	whole = len(strings.TrimRight(fraction, "0")) <= 2
	fraction = (fraction + "00")[:2]
	if minor, err = strconv.ParseInt(units+fraction, 10, 64); err != nil || minor > maxPrice {
		return 0, false, fmt.Errorf("is not a price up to %d.00", maxPrice/100)
	}
	if negative {
		minor = -minor
	}
	return minor, whole, nil
}

func parseCustomer(text string) (string, error) {
	text = strings.TrimSuffix(strings.TrimSpace(text), ".0")
	if strings.Trim(text, "0123456789") != "" || len(text) > 12 {
		return "", errors.New("not a number")
	}
	return text, nil
}
