package order_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/order"
	"github.com/convergo/convergo/trade/tradetest"
)

func TestAStoryIsMergedFromAllServicesAndNamesThoseThatAreSilent(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		var asked string
		peer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = r.Header.Get("Authorization")
			no := strings.TrimPrefix(r.URL.Path, "/points/story/")
			entry := `{"at":"2026-11-29T10:00:30Z","service":"points","what":"effect points.grant","key":"ORDER_POINT:` + no + `"}`
			_, _ = w.Write([]byte(`{"order_no":"` + no + `","service":"points","entries":[` + entry + `]}`))
		}))
		defer peer.Close()
		broken := httptest.NewServer(http.NotFoundHandler())
		defer broken.Close()
		gone := httptest.NewServer(nil)
		gone.Close()
		r := newRigWith(t, db, order.Config{PeerKey: "peer-key", Peers: map[string]string{"points": peer.URL + "/", "ledger": broken.URL, "coupon": gone.URL, "order": gone.URL}})
		no := r.place("alice", r.goods(8800, 1))
		r.Clock.Advance(time.Minute)
		r.hold(no, 0, 0)
		r.must(r.tell(trade.PaymentSucceeded, no, r.receipt(no, "T-1")))
		v := r.asked(r.refund(no))
		r.must(r.refunded(v))
		res := r.Get(tradetest.User("alice"), "/orders/"+no+"/story")
		story := tradetest.Into[order.Story](t, res)
		var what []string
		for i, e := range story.Entries {
			what = append(what, e.Service+": "+e.What)
			if i > 0 && e.At.Before(story.Entries[i-1].At) {
				t.Errorf("entry %d is out of order", i)
			}
		}
		text := strings.Join(what, "\n")
		at := 0
		for _, want := range []string{
			"order: order · → CREATED (begin)", "order: event OrderCreated v1", "points: effect points.grant", "order: order CREATED → PAID (pay)",
			"order: refund " + v.RefundNo + " · → REQUESTED (begin)", "order: order PAID → REFUNDING (refund)", "(finish)", "order: order REFUNDING → REFUNDED (refunded)",
			"order: event OrderRefunded",
		} {
			i := strings.Index(text[at:], want)
			if i < 0 {
				t.Fatalf("%q does not stand where it should in\n%s", want, text)
			}
			at += i
		}
		if len(story.Unanswered) != 2 || story.Unanswered[0].Service != "coupon" || story.Unanswered[1].Service != "ledger" {
			t.Errorf("unanswered: %+v", story.Unanswered)
		}
		if asked != "Bearer peer-key" {
			t.Errorf("the peer was asked with %q", asked)
		}
		for _, e := range story.Entries {
			if strings.Contains(e.What, "PAID (pay)") && (e.Cause != "sim:T-1" || e.Key == "") {
				t.Errorf("the payment's cause is %q, its key %q", e.Cause, e.Key)
			}
		}
		own := tradetest.Into[trade.StoryAnswer](t, r.Get(tradetest.Operator(), trade.StoryPath("order", no)))
		if len(own.Entries) != len(story.Entries)-1 || own.Service != "order" {
			t.Errorf("the service's own part has %d entries", len(own.Entries))
		}
		if none := tradetest.Into[trade.StoryAnswer](t, r.Get(tradetest.Operator(), trade.StoryPath("order", "NONE"))); none.Entries == nil || len(none.Entries) != 0 {
			t.Errorf("the story of an unknown order is %+v", none)
		}
	})
}
