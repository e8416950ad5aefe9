package drill

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
)

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestWhatABuyerDidTellsWhereHisOrderEnds(t *testing.T) {
	ends := map[Behaviour][]string{
		Pays: {"COMPLETED"}, PaysTwice: {"COMPLETED"}, PaysWrong: {"COMPLETED"}, PaysElsewhere: {"COMPLETED"}, Declined: {"COMPLETED"},
		Cancels: {"CANCELED"}, Abandons: {"CANCELED"}, SoldOut: {"CANCELED"}, PaysLate: {"CANCELED", "COMPLETED"}, RacesTimeout: {"CANCELED", "COMPLETED"},
		Returns: {"REFUNDED"}, ReturnsSome: {"COMPLETED"},
	}
	lines := []Line{{SKU: "A", Quantity: 2}, {SKU: "B", Quantity: 1}}
	for behaviour, good := range ends {
		for _, status := range []string{"CREATED", "CLOSING", "PAID", "SHIPPED", "COMPLETED", "CANCELED", "REFUNDING", "REFUNDED", ""} {
			o := Order{Behaviour: behaviour, Lines: lines}
			if behaviour == ReturnsSome {
				o.Return = []Return{{Line: 0, Quantity: 1}}
			}
			r := Result{Order: o, Status: status, Reason: "user"}
			if r.expected() != slices.Contains(good, status) {
				t.Errorf("a buyer who %s: %s is expected: %t", behaviour, status, r.expected())
			}
			if r.expected() && !final(status, o) {
				t.Errorf("a buyer who %s: %s is expected but not final", behaviour, status)
			}
		}
	}
	if len(ends) != len(rare())+1 {
		t.Errorf("%d behaviours are tested of %d", len(ends), len(rare())+1)
	}
}

func TestAnOrderThatCostsNothingIsPaidBeforeItsBuyerCanCancel(t *testing.T) {
	for _, b := range []Behaviour{Cancels, Abandons} {
		if !(Result{Order: Order{Behaviour: b}, Status: "COMPLETED", Free: true}).expected() {
			t.Errorf("a buyer who %s", b)
		}
	}
	if (Result{Order: Order{Behaviour: SoldOut}, Status: "COMPLETED", Free: true}).expected() {
		t.Error("more was sold than there is")
	}
}

func TestAnOrderWhosePiecesAllComeBackEndsRefunded(t *testing.T) {
	lines := []Line{{SKU: "A", Quantity: 2}, {SKU: "B", Quantity: 1}}
	o := Order{Behaviour: ReturnsSome, Lines: lines, Return: []Return{{0, 2}, {1, 1}}}
	if final("COMPLETED", o) || !(Result{Order: o, Status: "REFUNDED"}).expected() || (Result{Order: o, Status: "COMPLETED"}).expected() {
		t.Error("all pieces of the order came back")
	}
}

func TestOnlySomeReasonsExcuseAClosedOrder(t *testing.T) {
	for _, c := range []struct {
		order  Order
		reason string
		want   bool
	}{
		{Order{}, "timeout", true},
		{Order{}, "coupon: used up", false},
		{Order{Coupon: "X"}, "coupon: used up", true},
		{Order{}, "points: 5 points wanted, 0 available", false},
		{Order{Points: 5}, "points: 5 points wanted, 0 available", true},
		{Order{}, "out_of_stock: HOT-1", false},
		{Order{Coupon: "X", Points: 5}, "risk: too large", false},
		{Order{}, "", false},
	} {
		c.order.Behaviour = Pays
		if got := (Result{Order: c.order, Status: "CANCELED", Reason: c.reason}).expected(); got != c.want {
			t.Errorf("%q of %+v: %t", c.reason, c.order, got)
		}
	}
}

func TestAnOrderThatWentWrongIsToldWithItsBuyer(t *testing.T) {
	s := &Shop{Results: []Result{
		{Order: Order{Ref: "DAY-1", Behaviour: Pays}, OrderNo: "O-1", Status: "COMPLETED"},
		{Order: Order{Ref: "DAY-2", Behaviour: Cancels}, OrderNo: "O-2", Status: "COMPLETED"},
	}}
	wrong := s.Unexpected()
	if len(wrong) != 1 || !strings.Contains(wrong[0], "O-2 (DAY-2)") || !strings.Contains(wrong[0], string(Cancels)) {
		t.Errorf("%q", wrong)
	}
}

func TestAShortDayHasEverything(t *testing.T) {
	for seed := range uint64(20) {
		d := Generate(seed, 60)
		behaviours, seen := map[Behaviour]bool{}, map[string]bool{}
		for _, o := range d.Orders {
			behaviours[o.Behaviour] = true
			skus := map[string]bool{}
			for _, l := range o.Lines {
				if skus[l.SKU] {
					seen["one SKU on several lines"] = true
				}
				skus[l.SKU] = true
				if d.Products[l.SKU].Prices[l.Offer] != l.Price || l.Quantity < 1 {
					t.Fatalf("seed %d, %s: line %+v", seed, o.Ref, l)
				}
			}
			guest := strings.HasPrefix(o.User, "guest-")
			for what, is := range map[string]bool{
				"hot SKU": skus[hotSKU], "guest": guest, "coupon": o.Coupon == hotCoupon, "an order that costs nothing": o.Coupon == hugeCoupon && o.Behaviour == Pays,
				"return of one that cost nothing": o.Coupon == hugeCoupon && o.Behaviour == Returns, "points spent": o.Points > 0 && o.Behaviour == Pays,
				"points given back": o.Points > 0 && o.Behaviour == Returns, "points released": o.Points > 0 && o.Behaviour == Cancels,
				"coupon returned": o.Coupon == hotCoupon && o.Behaviour == Returns, "coupon released": o.Coupon != "" && o.Behaviour == Cancels, "some pieces": len(o.Return) > 0,
			} {
				if is {
					seen[what] = true
				}
			}
			if guest && o.Points > 0 || o.Points > 0 && d.Grants[o.User] == 0 {
				t.Errorf("seed %d, %s: spends points that nobody gave", seed, o.Ref)
			}
			if o.returnsAll() != (o.Behaviour == Returns) {
				t.Errorf("seed %d, %s: returns all: %t, %s", seed, o.Ref, o.returnsAll(), o.Behaviour)
			}
			if o.Coupon == hugeCoupon && o.Behaviour != Pays && o.Behaviour != Returns && o.Behaviour != ReturnsSome {
				t.Errorf("seed %d, %s: a buyer who owes nothing cannot be one who %s", seed, o.Ref, o.Behaviour)
			}
		}
		if len(behaviours) != len(rare())+1 || len(seen) != 12 {
			t.Errorf("seed %d: %d behaviours, and %q", seed, len(behaviours), slices.Sorted(maps.Keys(seen)))
		}
	}
}

func TestWhoWaitsForTheTimeoutComesEarly(t *testing.T) {
	d := Generate(3, 600)
	late := 0
	for i, o := range d.Orders {
		if i > 200 && (o.Behaviour == Abandons || o.Behaviour == RacesTimeout) {
			late++
		}
	}
	if late > 0 {
		t.Errorf("%d of the last 400 buyers wait for the timeout", late)
	}
}
