package order_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/order"
	"github.com/convergo/convergo/trade/tradetest"
)

func TestCaseB36AKeyBelongsToItsUserItsRouteAndItsContent(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		alice, bob := tradetest.User("alice"), tradetest.User("bob")
		w := r.goods(8800, 1)
		w.ClientToken = r.token("alice")
		first := r.PostKey(alice, "/orders", "k-1", w)
		if first.Status != http.StatusCreated {
			t.Fatalf("first: %d %s", first.Status, first.Body)
		}
		again := r.PostKey(alice, "/orders", "k-1", w)
		if again.Status != http.StatusCreated || !bytes.Equal(again.Body, first.Body) || again.Header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("(a) the same again: %d %s", again.Status, again.Body)
		}
		more := w
		more.Lines = []wishLine{{SKU: "S1", Quantity: 2}}
		if res := r.PostKey(alice, "/orders", "k-1", more); res.Status != http.StatusUnprocessableEntity {
			t.Errorf("(b) other content: %d %s", res.Status, res.Body)
		}
		his := w
		his.ClientToken = r.token("bob")
		if res := r.PostKey(bob, "/orders", "k-1", his); res.Status != http.StatusCreated {
			t.Errorf("(c) another user's key: %d %s", res.Status, res.Body)
		}
		no := tradetest.Into[order.PlacedOrder](t, first).OrderNo
		if res := r.PostKey(alice, "/orders/"+no+"/cancel", "k-1", nil); res.Status != http.StatusAccepted {
			t.Errorf("(d) another route's key: %d %s", res.Status, res.Body)
		}
		for name, key := range map[string]string{"300 characters": strings.Repeat("k", 300), "none": "", "blank": " "} {
			res := r.PostKey(alice, "/orders", key, w)
			if res.Status != http.StatusBadRequest {
				t.Errorf("(f) key of %s: %d %s", name, res.Status, res.Body)
			}
		}
		if n := r.Int("SELECT COUNT(*) FROM orders"); n != 2 {
			t.Errorf("%d orders, want 2", n)
		}
	})
}

func TestATokenIsGoodForOneContentOnly(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		alice := tradetest.User("alice")
		w := r.goods(8800, 1)
		w.ClientToken = r.token("alice")
		first := r.Post(alice, "/orders", w)
		r.Clock.Advance(time.Minute)
		r.price("S1", 9900) // the price changes meanwhile
		again := r.Post(alice, "/orders", w)
		if again.Status != http.StatusCreated || !bytes.Equal(again.Body, first.Body) {
			t.Errorf("the same content with another key: %d %s, want the first answer %s", again.Status, again.Body, first.Body)
		}
		other := w
		other.Lines = []wishLine{{SKU: "S1", Quantity: 2}}
		if res := r.Post(alice, "/orders", other); res.Status != http.StatusUnprocessableEntity || res.Problem().Field != "body.client_token" {
			t.Errorf("other content: %d %s", res.Status, res.Body)
		}
		r.Clock.Advance(time.Hour)
		if res := r.Post(alice, "/orders", w); res.Status != http.StatusCreated || !bytes.Equal(res.Body, first.Body) {
			t.Errorf("a very late retry: %d %s, want the first answer", res.Status, res.Body)
		}
		if n := r.Int("SELECT COUNT(*) FROM orders"); n != 1 {
			t.Errorf("%d orders, want 1", n)
		}
	})
}

func TestReport21OneCheckoutFromTwoThreadsIsOneOrder(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		w := r.goods(8800, 1)
		w.ClientToken = r.token("alice")
		var all sync.WaitGroup
		answers := make([]tradetest.Response, 8)
		for i := range answers {
			all.Go(func() { answers[i] = r.Post(tradetest.User("alice"), "/orders", w) })
		}
		all.Wait()
		for _, a := range answers {
			if a.Status != http.StatusCreated || !bytes.Equal(a.Body, answers[0].Body) {
				t.Errorf("answer %d %s, want that of the first: %s", a.Status, a.Body, answers[0].Body)
			}
		}
		if n := len(r.Events(trade.OrderCreated)); n != 1 {
			t.Errorf("%d OrderCreated events", n)
		}
	})
}

func TestARefusedOrderLeavesItsTokenUsable(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		w := r.goods(8800, 1)
		w.ClientToken = r.token("alice")
		bad := w
		bad.Lines = []wishLine{{SKU: "NONE", Quantity: 1}}
		if res := r.Post(tradetest.User("alice"), "/orders", bad); res.Status != http.StatusUnprocessableEntity {
			t.Fatalf("unknown SKU: %d %s", res.Status, res.Body)
		}
		if res := r.Post(tradetest.User("alice"), "/orders", w); res.Status != http.StatusCreated {
			t.Errorf("after the correction: %d %s", res.Status, res.Body)
		}
	})
}

func TestReport33WhatWeMakeUpIsNoPartOfWhatIsCompared(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		// The order's number and times are ours; two requests of one content must fit one another all the same.
		r := newRig(t, db)
		w := r.goods(8800, 1)
		w.ClientToken, w.Reference = r.token("alice"), "my-1"
		a := r.PostKey(tradetest.User("alice"), "/orders", "k-1", w)
		r.Clock.Advance(10 * time.Minute)
		b := r.PostKey(tradetest.User("alice"), "/orders", "k-2", w)
		if a.Status != http.StatusCreated || !bytes.Equal(a.Body, b.Body) {
			t.Errorf("%s\n%s", a.Body, b.Body)
		}
	})
}

func TestReport35AnOrderKeepsThePriceItWasPlacedAt(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.place("u-1", r.goods(8800, 2))
		r.price("S1", 1)
		r.hold(no, 0, 0)
		if o := r.order(no); o.Payable != 17600 || o.Lines[0].UnitPrice != 8800 {
			t.Errorf("payable %d at %d apiece, want 17600 at 8800", o.Payable, o.Lines[0].UnitPrice)
		}
		if p := tradetest.Payloads[trade.Payable](r.Bench, trade.OrderPayable); p[0].Amount != 17600 {
			t.Errorf("OrderPayable says %d", p[0].Amount)
		}
	})
}

func TestOffersAreOtherPricesOfOneProduct(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		res := r.Put(tradetest.Operator(), "/products/10A", map[string]any{"currency": "GBP", "price": "2.55", "offers": map[string]int64{"p295": 295}})
		if p := tradetest.Into[order.Product](t, res); p.UnitPrice != 255 || p.Price != "2.55" || p.Offers["p295"] != 295 {
			t.Fatalf("product %+v (%s)", p, res.Body)
		}
		no := r.place("u-1", wish{Currency: "GBP", Lines: []wishLine{{SKU: "10A", Quantity: 2}, {SKU: "10A", Offer: "p295", Quantity: 1}}})
		if o := r.order(no); o.GoodsTotal != 2*255+295 {
			t.Errorf("goods total %d", o.GoodsTotal)
		}
	})
}

func TestReport32NobodyTouchesAnothersOrder(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.paid("alice", r.goods(8800, 1), 0, 0)
		open := r.place("alice", r.goods(8800, 1))
		before := r.rows()
		for _, who := range []trade.Principal{tradetest.User("mallory"), tradetest.User("operator"), {}} {
			want := http.StatusNotFound
			if who.Kind == "" {
				want = http.StatusUnauthorized
			}
			for _, path := range []string{"/orders/" + no, "/orders/" + no + "/refunds", "/orders/" + no + "/story", "/orders/" + no + "?wait=closed&timeout=1s"} {
				if res := r.Get(who, path); res.Status != want {
					t.Errorf("%v GET %s: %d %s", who, path, res.Status, res.Body)
				}
			}
			for _, path := range []string{"/orders/" + open + "/cancel", "/orders/" + no + "/refunds"} {
				if res := r.Post(who, path, map[string]any{}); res.Status != want {
					t.Errorf("%v POST %s: %d %s", who, path, res.Status, res.Body)
				}
			}
		}
		mallory := tradetest.User("mallory")
		for path, res := range map[string]tradetest.Response{
			"list of another":   r.Get(mallory, "/orders?user=alice"),
			"price":             r.Put(mallory, "/products/S1", map[string]any{"currency": "CNY", "unit_price": 1}),
			"session":           r.Post(mallory, "/users/alice/sessions", map[string]any{}),
			"a service's story": r.Get(mallory, "/order/story/"+no),
			"operator's order":  r.Post(tradetest.Operator(), "/orders", r.goods(8800, 1)),
			"operator's token":  r.Post(tradetest.Operator(), "/tokens", map[string]string{"scene": "order"}),
		} {
			if res.Status != http.StatusForbidden {
				t.Errorf("%s: %d %s", path, res.Status, res.Body)
			}
		}
		for _, path := range []string{"/orders/" + no + "/pay", "/orders/" + no + "?status=PAID", "/orders/" + open + "?wait=paid&timeout=0s"} {
			r.Get(tradetest.User("alice"), path) // a browser's URL changes nothing
		}
		r.is(open, order.Created)
		if after := r.rows(); after != before {
			t.Errorf("before %s\nafter  %s", before, after)
		}
	})
}

func TestCaseB51LargeIdsStayWhatTheyAre(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		w := r.goods(8800, 1)
		w.Reference = "616581622363398142"
		no := r.place("9007199254740993", w)
		o := r.order(no)
		if o.UserID != "9007199254740993" || o.Reference != "616581622363398142" {
			t.Errorf("user %s, reference %s", o.UserID, o.Reference)
		}
		if p := tradetest.Payloads[trade.OrderPlaced](r.Bench, trade.OrderCreated)[0]; p.UserID != "9007199254740993" {
			t.Errorf("the event says user %s", p.UserID)
		}
		r.hold(no, 0, 0)
		p := r.receipt(no, "9007199254740993")
		r.must(r.tell(trade.PaymentSucceeded, no, p))
		if got := r.order(no).Transaction; got != "9007199254740993" {
			t.Errorf("transaction %s", got)
		}
		// An id as a number is refused, not rounded.
		body := `{"client_token":"x","currency":"CNY","lines":[{"sku":"S1","quantity":1}],"reference":616581622363398142}`
		if res := r.Post(tradetest.User("u-1"), "/orders", body); res.Status != http.StatusUnprocessableEntity || res.Problem().Field != "body.reference" {
			t.Errorf("an id as a number: %d %s", res.Status, res.Body)
		}
		// The largest amount survives.
		r.price("MAX", trade.MaxMinor)
		if o := r.order(r.place("u-2", wish{Currency: "CNY", Lines: []wishLine{{SKU: "MAX", Quantity: 1}}})); o.GoodsTotal != trade.MaxMinor {
			t.Errorf("goods total %d", o.GoodsTotal)
		}
	})
}

func TestBadInputIsRefusedClearlyAndWritesNothing(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRigWith(t, db, order.Config{TokenTTL: time.Minute})
		alice := tradetest.User("alice")
		w := r.goods(8800, 1)
		r.price("HUGE", trade.MaxMinor)
		r.Put(tradetest.Operator(), "/products/USD1", map[string]any{"currency": "USD", "unit_price": 1})
		expired := r.token("alice")
		r.Clock.Advance(time.Minute)
		fresh, foreign := r.token("alice"), r.token("bob")
		session, err := trade.MintSession([]byte(tradetest.Secret), "alice", r.Clock.Now().Add(time.Hour))
		r.must(err)
		otherScene, err := trade.SignToken([]byte(tradetest.Secret), "ct1", map[string]any{"i": "x", "u": "alice", "s": "lottery", "e": r.Clock.Now().Add(time.Hour).UnixMicro()})
		r.must(err)
		with := func(change func(*wish)) wish {
			c := w
			c.ClientToken = fresh
			c.Lines = []wishLine{{SKU: "S1", Quantity: 1}}
			change(&c)
			return c
		}
		text := func(format string) string { return strings.ReplaceAll(format, "TOKEN", fresh) }
		cases := map[string]struct {
			body   any
			status int
			field  string
		}{
			"no JSON":             {`{"currency":`, 400, "body.currency"},
			"nothing":             {"", 400, ""},
			"trailing data":       {text(`{"client_token":"TOKEN","currency":"CNY","lines":[{"sku":"S1","quantity":1}]} {}`), 400, "body"},
			"not UTF-8":           {text("{\"client_token\":\"TOKEN\",\"currency\":\"CNY\",\"reference\":\"\xff\",\"lines\":[{\"sku\":\"S1\",\"quantity\":1}]}"), 400, "body"},
			"doubled name":        {text(`{"client_token":"TOKEN","currency":"CNY","lines":[{"sku":"S1","quantity":1,"Quantity":9}]}`), 400, "body.lines[0].Quantity"},
			"unknown field":       {text(`{"client_token":"TOKEN","currency":"CNY","lines":[{"sku":"S1","quantity":1}],"discount":1}`), 422, "body.discount"},
			"unknown line field":  {text(`{"client_token":"TOKEN","currency":"CNY","lines":[{"sku":"S1","quantity":1,"unit_price":1}]}`), 422, "body.lines[0].unit_price"},
			"fraction":            {text(`{"client_token":"TOKEN","currency":"CNY","lines":[{"sku":"S1","quantity":1.5}]}`), 422, "body.lines[0].quantity"},
			"exponent":            {text(`{"client_token":"TOKEN","currency":"CNY","lines":[{"sku":"S1","quantity":1e2}]}`), 422, "body.lines.quantity"},
			"overflow in JSON":    {text(`{"client_token":"TOKEN","currency":"CNY","lines":[{"sku":"S1","quantity":9223372036854775808}]}`), 422, "body.lines.quantity"},
			"text for a number":   {text(`{"client_token":"TOKEN","currency":"CNY","lines":[{"sku":"S1","quantity":"1"}]}`), 422, "body.lines[0].quantity"},
			"null lines":          {text(`{"client_token":"TOKEN","currency":"CNY","lines":null}`), 422, "body.lines"},
			"oversized":           {[]byte(`{"reference":"` + strings.Repeat("x", trade.MaxBody) + `"}`), 413, ""},
			"no lines":            {with(func(w *wish) { w.Lines = []wishLine{} }), 422, "body.lines"},
			"2,001 lines":         {with(func(w *wish) { w.Lines = make2001() }), 422, "body.lines"},
			"zero pieces":         {with(func(w *wish) { w.Lines[0].Quantity = 0 }), 422, "body.lines[0].quantity"},
			"negative pieces":     {with(func(w *wish) { w.Lines[0].Quantity = -1 }), 422, "body.lines[0].quantity"},
			"too many pieces":     {with(func(w *wish) { w.Lines[0].Quantity = trade.MaxQuantity + 1 }), 422, "body.lines[0].quantity"},
			"overflowing line":    {with(func(w *wish) { w.Lines[0] = wishLine{SKU: "HUGE", Quantity: 2} }), 422, "body.lines[0].quantity"},
			"overflowing total":   {with(func(w *wish) { w.Lines = []wishLine{{SKU: "HUGE", Quantity: 1}, {SKU: "HUGE", Quantity: 1}} }), 422, "body.lines"},
			"unknown SKU":         {with(func(w *wish) { w.Lines[0].SKU = "NONE" }), 422, "body.lines[0].sku"},
			"unknown offer":       {with(func(w *wish) { w.Lines[0].Offer = "NONE" }), 422, "body.lines[0].offer"},
			"bad SKU":             {with(func(w *wish) { w.Lines[0].SKU = "S1 " }), 422, "body.lines[0].sku"},
			"SKU too long":        {with(func(w *wish) { w.Lines[0].SKU = strings.Repeat("S", 65) }), 422, "body.lines[0].sku"},
			"unknown currency":    {with(func(w *wish) { w.Currency = "XXX" }), 422, "body.currency"},
			"other currency":      {with(func(w *wish) { w.Currency = "USD" }), 422, "body.currency"},
			"mixed currencies":    {with(func(w *wish) { w.Lines = append(w.Lines, wishLine{SKU: "USD1", Quantity: 1}) }), 422, "body.currency"},
			"negative points":     {with(func(w *wish) { w.PointsToSpend = -1 }), 422, "body.points_to_spend"},
			"bad coupon":          {with(func(w *wish) { w.CouponCode = "TEN OFF" }), 422, "body.coupon_code"},
			"long reference":      {with(func(w *wish) { w.Reference = strings.Repeat("r", 201) }), 422, "body.reference"},
			"control characters":  {with(func(w *wish) { w.Reference = "a\nb" }), 422, "body.reference"},
			"no token":            {with(func(w *wish) { w.ClientToken = "" }), 400, "body.client_token"},
			"forged token":        {with(func(w *wish) { w.ClientToken = fresh[:len(fresh)-2] + "xx" }), 403, "body.client_token"},
			"session as token":    {with(func(w *wish) { w.ClientToken = session }), 403, "body.client_token"},
			"foreign token":       {with(func(w *wish) { w.ClientToken = foreign }), 403, "body.client_token"},
			"token of other kind": {with(func(w *wish) { w.ClientToken = otherScene }), 403, "body.client_token"},
			"expired token":       {with(func(w *wish) { w.ClientToken = expired }), 410, "body.client_token"},
		}
		before := r.rows()
		for name, c := range cases {
			res := r.Post(alice, "/orders", c.body)
			p := res.Problem()
			if res.Status != c.status || p.Field != c.field || p.Detail == "" {
				t.Errorf("%s: %d, field %q, %.200s; want %d about %q", name, res.Status, p.Field, res.Body, c.status, c.field)
			}
			if ct := res.Header.Get("Content-Type"); ct != "application/problem+json" {
				t.Errorf("%s: answered as %s", name, ct)
			}
			if len(res.Body) > 4096 {
				t.Errorf("%s: the answer has %d bytes", name, len(res.Body))
			}
		}
		if after := r.rows(); after != before {
			t.Errorf("before %s\nafter  %s", before, after)
		}
		if res := r.Post(alice, "/orders", with(func(*wish) {})); res.Status != http.StatusCreated {
			t.Errorf("the good one: %d %s", res.Status, res.Body)
		}
	})
}

func make2001() []wishLine {
	lines := make([]wishLine, trade.MaxLines+1)
	for i := range lines {
		lines[i] = wishLine{SKU: "S1", Quantity: 1}
	}
	return lines
}

func TestCaseB34PricesAreReadExactly(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		for text, want := range map[string]int64{"19.90": 1990, "4.35": 435, "0.29": 29, "1.13": 113, "8.80": 880} {
			res := r.Put(tradetest.Operator(), "/products/P", map[string]any{"currency": "CNY", "price": text})
			if p := tradetest.Into[order.Product](t, res); p.UnitPrice != want {
				t.Errorf("%s is %d", text, p.UnitPrice)
			}
		}
		before := r.rows()
		for name, body := range map[string]any{
			"1e2": map[string]any{"currency": "CNY", "price": "1e2"}, "1,000.00": map[string]any{"currency": "CNY", "price": "1,000.00"},
			"９": map[string]any{"currency": "CNY", "price": "９"}, "-0.01": map[string]any{"currency": "CNY", "price": "-0.01"},
			"9.995": map[string]any{"currency": "CNY", "price": "9.995"}, "both": map[string]any{"currency": "CNY", "price": "1.00", "unit_price": 100},
			"neither": map[string]any{"currency": "CNY"}, "negative": map[string]any{"currency": "CNY", "unit_price": -1},
			"too large": map[string]any{"currency": "CNY", "unit_price": trade.MaxMinor + 1}, "float": map[string]any{"currency": "CNY", "unit_price": 1.5},
			"no currency": map[string]any{"currency": "", "unit_price": 1},
		} {
			if res := r.Put(tradetest.Operator(), "/products/NEW", body); res.Status != http.StatusUnprocessableEntity {
				t.Errorf("%s: %d %s", name, res.Status, res.Body)
			}
		}
		if after := r.rows(); after != before {
			t.Errorf("before %s\nafter  %s", before, after)
		}
	})
}

func TestAnOrderOf2000LinesIsPlacedPaidAndRefunded(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		w := r.goods(101, 1)
		w.CouponCode = "C"
		w.Lines = make2001()[:trade.MaxLines]
		no := r.paid("u-1", w, 777, 0)
		v := r.asked(r.refund(no))
		if len(v.Lines) != trade.MaxLines || v.Amount != 2000*101 || v.CouponTotal != 777 {
			t.Errorf("refund of %d lines, amount %d, coupon %d", len(v.Lines), v.Amount, v.CouponTotal)
		}
		for _, e := range r.Events("") {
			if len(e.Payload) > 512*1024 {
				t.Errorf("%s has %d bytes", e.Type, len(e.Payload))
			}
		}
	})
}

func TestASessionOfTheOperatorLetsTheUserIn(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		res := r.Post(tradetest.Operator(), "/users/alice/sessions", map[string]any{"ttl_seconds": 60})
		if res.Status != http.StatusCreated {
			t.Fatalf("session: %d %s", res.Status, res.Body)
		}
		token := tradetest.Into[order.Token](t, res).Token
		header := map[string]string{"Authorization": "Bearer " + token}
		if res := r.Do(trade.Principal{}, http.MethodGet, "/orders", header, nil); res.Status != http.StatusOK {
			t.Errorf("with the session: %d %s", res.Status, res.Body)
		}
		r.Clock.Advance(time.Minute)
		if res := r.Do(trade.Principal{}, http.MethodGet, "/orders", header, nil); res.Status != http.StatusUnauthorized {
			t.Errorf("after its time: %d %s", res.Status, res.Body)
		}
		if res := r.Post(tradetest.Operator(), "/users/alice/sessions", nil); res.Status != http.StatusCreated {
			t.Errorf("without a body: %d %s", res.Status, res.Body)
		}
		if res := r.Post(tradetest.Operator(), "/users/a%20b/sessions", nil); res.Status != http.StatusUnprocessableEntity {
			t.Errorf("for a bad id: %d %s", res.Status, res.Body)
		}
	})
}

func TestOrdersAreListedNewestFirstPageByPage(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		var placed []string
		for range 5 {
			placed = append(placed, r.place("alice", r.goods(100, 1)))
			r.Clock.Advance(time.Second)
		}
		r.place("bob", r.goods(100, 1))
		var seen []string
		after := ""
		for range 5 {
			res := r.Get(tradetest.User("alice"), "/orders?limit=2&after="+after)
			page := tradetest.Into[struct {
				Orders []order.Order `json:"orders"`
				Next   string        `json:"next"`
			}](t, res)
			for _, o := range page.Orders {
				seen = append(seen, o.OrderNo)
			}
			if after = page.Next; after == "" {
				break
			}
		}
		if fmt.Sprint(seen) != fmt.Sprint([]string{placed[4], placed[3], placed[2], placed[1], placed[0]}) {
			t.Errorf("listed %v, placed %v", seen, placed)
		}
		for _, q := range []string{"limit=0", "limit=201", "limit=x", "colour=red"} {
			if res := r.Get(tradetest.User("alice"), "/orders?"+q); res.Status != http.StatusUnprocessableEntity {
				t.Errorf("%s: %d %s", q, res.Status, res.Body)
			}
		}
	})
}

func TestAWaitEndsWhenTheOrderIsThere(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.place("alice", r.goods(100, 1))
		answer := make(chan tradetest.Response, 1)
		go func() { answer <- r.Get(tradetest.User("alice"), "/orders/"+no+"?wait=payable&timeout=20s") }()
		r.hold(no, 0, 0)
		select {
		case res := <-answer:
			if o := tradetest.Into[order.Order](t, res); !o.IsPayable {
				t.Errorf("answered %+v", o)
			}
		case <-time.After(15 * time.Second):
			t.Fatal("the wait did not end")
		}
		if o := tradetest.Into[order.Order](t, r.Get(tradetest.User("alice"), "/orders/"+no+"?wait=paid&timeout=20ms")); o.Status != order.Created {
			t.Errorf("after the timeout: %+v", o)
		}
		for _, q := range []string{"wait=rich", "wait=paid&timeout=31s", "wait=paid&timeout=-1s", "wait=paid&timeout=soon"} {
			if res := r.Get(tradetest.User("alice"), "/orders/"+no+"?"+q); res.Status != http.StatusUnprocessableEntity {
				t.Errorf("%s: %d %s", q, res.Status, res.Body)
			}
		}
	})
}

func TestAProductWhoseCurrencyChangesHasNoOfferInTheOldOne(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		put := func(body map[string]any) tradetest.Response {
			t.Helper()
			return r.Put(tradetest.Operator(), "/products/S1", body)
		}
		if res := put(map[string]any{"currency": "CNY", "unit_price": 8800, "offers": map[string]int64{"sale": 7000}}); res.Status != http.StatusOK {
			t.Fatalf("%d %s", res.Status, res.Body)
		}
		res := put(map[string]any{"currency": "JPY", "unit_price": 200})
		if res.Status != http.StatusConflict || !strings.Contains(res.Problem().Detail, "sale") {
			t.Errorf("an offer of 7000 CNY would be shown as 7000 JPY: %d %s", res.Status, res.Body)
		}
		if p := tradetest.Into[order.Product](t, r.Get(tradetest.User("u-1"), "/products/S1")); p.Currency != "CNY" || p.UnitPrice != 8800 {
			t.Errorf("after the refusal: %+v", p)
		}
		if res := put(map[string]any{"currency": "JPY", "unit_price": 200, "offers": map[string]int64{"sale": 150}}); res.Status != http.StatusOK {
			t.Errorf("with all offers: %d %s", res.Status, res.Body)
		}
	})
}
