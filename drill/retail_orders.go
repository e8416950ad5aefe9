package drill

import (
	"fmt"
	"slices"
	"strings"
)

// retailSorter puts rows where they belong. An invoice's rows need not stand together.
type retailSorter struct {
	out     *Retail
	limit   int
	orders  map[string]*Order   // by invoice
	order   []*Order            // as they appear
	returns []retailRow         // rows of C-invoices, matched when all orders are known
	lines   map[string][]*piece // by customer: what can still come back
}

// piece is a line of an order with the number of pieces not yet returned.
type piece struct {
	order *Order
	index int
	left  int64
}

func newRetailSorter(out *Retail, limit int) *retailSorter {
	return &retailSorter{out: out, limit: limit, orders: map[string]*Order{}, lines: map[string][]*piece{}}
}

func (s *retailSorter) add(row retailRow) {
	switch {
	case strings.HasPrefix(row.invoice, "C"):
		s.returns = append(s.returns, row)
	case strings.HasPrefix(row.invoice, "A"):
		s.skip(row, "accounting adjustment (invoice A…)")
	case row.quantity == 0:
		s.skip(row, "quantity 0")
	case row.quantity < 0:
		s.skip(row, "stock adjustment: negative quantity outside a C-invoice"+note(row))
	case row.price < 0:
		s.skip(row, "negative price outside a C-invoice: a discount or an adjustment"+note(row))
	case !row.whole:
		s.skip(row, "price is not whole pence")
	case row.price == 0:
		s.skip(row, "price 0: a gift or a stock adjustment"+note(row))
	default:
		s.sell(row)
	}
}

func note(row retailRow) string {
	if row.memo == "" {
		return ""
	}
	return " (" + row.memo + ")"
}

func (s *retailSorter) skip(row retailRow, reason string) {
	s.out.Skipped = append(s.out.Skipped, SkippedRow{Line: row.line, Reason: reason, Amount: row.amount()})
	s.out.AmountSkipped += row.amount()
}

func (s *retailSorter) use(row retailRow) {
	s.out.RowsUsed++
	s.out.AmountOrders += row.amount()
}

func (s *retailSorter) sell(row retailRow) {
	o := s.orders[row.invoice]
	if o == nil {
		if s.limit > 0 && len(s.order) >= s.limit {
			s.skip(row, fmt.Sprintf("beyond the limit of %d orders", s.limit))
			return
		}
		user := row.user
		if user == "" {
			user = "guest-" + row.invoice
		}
		o = &Order{Ref: row.invoice, User: user, At: row.at, Behaviour: Pays}
		s.orders[row.invoice] = o
		s.order = append(s.order, o)
	}
	if len(o.Lines) == maxLines {
		s.skip(row, fmt.Sprintf("beyond %d lines in one order", maxLines))
		return
	}
	offer := fmt.Sprintf("p%d", row.price)
	p, known := s.out.Products[row.sku]
	if !known {
		p.Prices = map[string]int64{"": row.price}
	}
	p.Prices[offer] = row.price
	p.Stock += row.quantity
	s.out.Products[row.sku] = p
	s.lines[o.User] = append(s.lines[o.User], &piece{o, len(o.Lines), row.quantity})
	o.Lines = append(o.Lines, Line{SKU: row.sku, Offer: offer, Quantity: row.quantity, Price: row.price})
	s.use(row)
}

// finish matches the returns, each against the latest earlier order that fits, and puts the orders in time order.
func (s *retailSorter) finish() {
	for _, row := range s.returns {
		if reason := s.giveBack(row); reason != "" {
			s.skip(row, reason)
		}
	}
	for _, o := range s.order {
		o.Return = mergeReturns(o.Return)
		if len(o.Return) > 0 {
			o.Behaviour = ReturnsSome
		}
		s.out.Orders = append(s.out.Orders, *o)
	}
	slices.SortStableFunc(s.out.Orders, func(a, b Order) int { return a.At.Compare(b.At) })
	slices.SortStableFunc(s.out.Skipped, func(a, b SkippedRow) int { return a.Line - b.Line })
}

func (s *retailSorter) giveBack(row retailRow) string {
	switch {
	case row.quantity >= 0:
		return "C-invoice with a quantity that is not negative"
	case row.sku == "D":
		return "discount given afterwards (D)"
	case row.user == "":
		return "return without a customer"
	case !row.whole || row.price <= 0:
		return "return without a price in whole pence"
	}
	wanted := -row.quantity
	pieces := s.lines[row.user]
	for i := len(pieces) - 1; i >= 0; i-- {
		p := pieces[i]
		l := p.order.Lines[p.index]
		if l.SKU != row.sku || l.Price != row.price || p.left < wanted || p.order.At.After(row.at) {
			continue
		}
		p.left -= wanted
		p.order.Return = append(p.order.Return, Return{Line: p.index, Quantity: wanted})
		s.use(row)
		return ""
	}
	return "return of something that no earlier order of the customer in this file has"
}

// mergeReturns makes one entry of several for the same line, in line order.
func mergeReturns(in []Return) []Return {
	slices.SortStableFunc(in, func(a, b Return) int { return a.Line - b.Line })
	var out []Return
	for _, r := range in {
		if n := len(out); n > 0 && out[n-1].Line == r.Line {
			out[n-1].Quantity += r.Quantity
			continue
		}
		out = append(out, r)
	}
	return out
}
