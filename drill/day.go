// Package drill makes a shop's day with everything going wrong, drives a platform through it over HTTP as its customers
// and its payment channel would, and tells whether the platform converged.
package drill

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Behaviour is what a buyer does with an order.
type Behaviour string

// The behaviours. Each ends in a state that is known beforehand, whatever goes wrong on the way.
const (
	Pays          Behaviour = "pays"           // COMPLETED
	PaysTwice     Behaviour = "pays twice"     // two intents, both paid: COMPLETED, the second payment refunded
	PaysWrong     Behaviour = "pays wrong"     // a wrong amount first (refunded), then the right one: COMPLETED
	PaysElsewhere Behaviour = "pays elsewhere" // a notice for another merchant first (a case), then the right one: COMPLETED
	Declined      Behaviour = "declined"       // a declined payment, then a good one, then the late decline again: COMPLETED
	Cancels       Behaviour = "cancels"        // cancels before paying: CANCELED
	Abandons      Behaviour = "abandons"       // never pays; closed by the timeout: CANCELED
	PaysLate      Behaviour = "pays late"      // cancels, then pays on the open cashier page: CANCELED or paid, never both
	RacesTimeout  Behaviour = "races timeout"  // pays at the moment of the timeout: paid, or CANCELED and refunded
	Returns       Behaviour = "returns"        // pays, then returns everything: REFUNDED
	ReturnsSome   Behaviour = "returns some"   // pays, then returns some pieces: COMPLETED
	SoldOut       Behaviour = "sold out"       // asks for more than there is: CANCELED
)

// Day is what is going to happen.
type Day struct {
	Currency string
	Orders   []Order
	Products map[string]Product // by SKU
	Coupons  []Coupon
	Grants   map[string]int64 // points by user, granted before the day begins
}

// Product is something to sell.
type Product struct {
	Prices map[string]int64 // by offer, minor units; "" is the standard offer
	Stock  int64            // received before the day begins
}

// Coupon is one to create before the day begins.
type Coupon struct {
	Code  string
	Value int64 // minor units
	Limit int64 // redemptions
}

// Order is one buyer's order.
type Order struct {
	Ref       string // unique in the day; the invoice number of a file
	User      string
	At        time.Time
	Lines     []Line
	Coupon    string
	Points    int64 // to spend
	Behaviour Behaviour
	Return    []Return // for Returns it is empty: everything goes back
}

// Line is one line of an order.
type Line struct {
	SKU      string
	Offer    string
	Quantity int64
	Price    int64 // minor units, what the offer costs
}

// Return is a number of pieces of a line (its index in Lines) that come back.
type Return struct {
	Line     int
	Quantity int64
}

// returnsAll: the order ends REFUNDED. Returning some pieces of an order that has no others is returning all of it.
func (o Order) returnsAll() bool {
	var back, pieces int64
	for _, l := range o.Lines {
		pieces += l.Quantity
	}
	for _, r := range o.Return {
		back += r.Quantity
	}
	return o.Behaviour == Returns || (back > 0 && back == pieces)
}

// Amount of the order before coupon and points, in minor units.
func (o Order) Amount() int64 {
	var sum int64
	for _, l := range o.Lines {
		sum += l.Quantity * l.Price
	}
	return sum
}

const (
	hotSKU      = "HOT-1"
	scarceSKU   = "LAST-1"
	hotCoupon   = "TEN-OFF"
	hugeCoupon  = "ALL-OFF"
	catalogue   = 40
	memberCount = 50
	openingGift = 4_000 // points of each member before the day begins; one point is worth one minor unit
)

// Generate makes a day of n orders from a seed: a hot SKU that every third order wants, one SKU on several lines,
// coupons (one larger than any cart), members with points to spend, guests, cancellations, returns and every Behaviour.
// Who waits for the timeout comes early, so that the day does not end with waiting for it.
func Generate(seed uint64, n int) Day {
	g := generator{rand.New(rand.NewPCG(seed, 0x636f6e76)), n, Day{Currency: "GBP", Products: map[string]Product{}, Grants: map[string]int64{}}}
	for i := range catalogue {
		g.day.Products[fmt.Sprintf("SKU-%03d", i)] = Product{Prices: map[string]int64{"": int64(g.IntN(9_900) + 35)}, Stock: int64(n) * 30}
	}
	g.day.Products[hotSKU] = Product{Prices: map[string]int64{"": 1_999}, Stock: int64(n) * 10}
	g.day.Products[scarceSKU] = Product{Prices: map[string]int64{"": 49_900}, Stock: 1}
	g.day.Coupons = []Coupon{{hotCoupon, 1_000, max(int64(n)/8, 20)}, {hugeCoupon, 10_000_000, int64(n)/50 + 2}}
	for i := range memberCount {
		g.day.Grants[member(i)] = openingGift
	}
	opening := time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)
	for i := range n {
		g.day.Orders = append(g.day.Orders, g.order(i, opening.Add(time.Duration(i)*time.Minute)))
	}
	return g.day
}

func member(i int) string { return fmt.Sprintf("member-%02d", i) }

type generator struct {
	*rand.Rand
	n   int
	day Day
}

func (g *generator) order(i int, at time.Time) Order {
	o := Order{Ref: fmt.Sprintf("DAY-%06d", i), At: at, Behaviour: g.behaviour(i)}
	guest := g.IntN(5) == 0 && i >= len(rare()) // the first of each kind are members, who have points to spend
	if guest {
		o.User = fmt.Sprintf("guest-%06d", i)
	} else {
		o.User = member(g.IntN(memberCount))
	}
	if o.Behaviour == SoldOut {
		o.Lines = []Line{g.line(scarceSKU, 2)}
	}
	for range g.IntN(4) + 1 {
		o.Lines = append(o.Lines, g.line(fmt.Sprintf("SKU-%03d", g.IntN(catalogue)), int64(g.IntN(5)+1)))
	}
	if i%3 == 0 {
		o.Lines = append(o.Lines, g.line(hotSKU, 1))
	}
	if i%7 == 0 { // one SKU on several lines
		o.Lines = append(o.Lines, g.line(o.Lines[0].SKU, 2))
	}
	o.Coupon = g.coupon(i, o.Behaviour)
	// More than a small cart is worth now and then, and more than a member has when he ordered often.
	if !guest && (i%6 == 2 || unwinds(o.Behaviour)) {
		o.Points = int64(g.IntN(1_500) + 1)
	}
	if o.Behaviour == ReturnsSome {
		o.Lines[0].Quantity++ // so that something stays
		o.Return = []Return{{Line: 0, Quantity: 1}}
	}
	return o
}

// unwinds: effects of such an order run backwards, so it has all kinds of them.
func unwinds(b Behaviour) bool {
	return b == Cancels || b == Returns || b == ReturnsSome || b == SoldOut
}

// coupon: who owes nothing after it can neither cancel nor pay in some wrong way, so the huge one is for the others.
func (g *generator) coupon(i int, b Behaviour) string {
	switch {
	case (i%53 == 2 || i == freeOrder || i == freeReturn) && (b == Pays || b == Returns || b == ReturnsSome):
		return hugeCoupon
	case i%10 == 1 || (unwinds(b) && i%2 == 0):
		return hotCoupon
	}
	return ""
}

func (g *generator) line(sku string, quantity int64) Line {
	return Line{SKU: sku, Quantity: quantity, Price: g.day.Products[sku].Prices[""]}
}

// rare are the behaviours beside Pays. Those that wait for the timeout stand first.
func rare() []Behaviour {
	return []Behaviour{Abandons, RacesTimeout, PaysTwice, PaysWrong, PaysElsewhere, Declined, Cancels, PaysLate, Returns, ReturnsSome, SoldOut}
}

const (
	waitForTimeout = 2  // of the rare ones
	freeOrder      = 11 // the first after the rare ones: it costs nothing
	freeReturn     = 12 // costs nothing and is returned
)

// behaviour gives the first orders one of each kind, so that a short day has them all, and then mostly good buyers.
func (g *generator) behaviour(i int) Behaviour {
	kinds := rare()
	if i < len(kinds) {
		return kinds[i]
	}
	switch {
	case i == freeOrder:
		return Pays
	case i == freeReturn:
		return Returns
	case i > g.n/3:
		kinds = kinds[waitForTimeout:]
	}
	if g.IntN(100) < 30 {
		return kinds[g.IntN(len(kinds))]
	}
	return Pays
}
