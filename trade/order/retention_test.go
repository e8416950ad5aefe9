package order_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/convergo/convergo/retain"
	"github.com/convergo/convergo/trade/order"
	"github.com/convergo/convergo/trade/tradetest"
)

// retainer runs what the service wants to be rid of.
func (r *rig) retainer() *retain.Retainer {
	return retain.New(r.service.Retention(), retain.Config{Now: r.Clock.Now, Chunk: 2, Pause: retain.NoPause})
}

func (r *rig) claims() int64 { return r.Int("SELECT COUNT(*) FROM client_token_claim") }

func TestClaimsOfTokensThatExpiredLongAgoLeaveAndTheirTokensStayUsed(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		alice := tradetest.User("alice")
		old := r.goods(8800, 1)
		old.ClientToken = r.token("alice")
		first := r.Post(alice, "/orders", old)
		for range 4 { // more than two chunks
			r.place("alice", r.goods(8800, 1))
		}
		r.Clock.Advance(13 * 24 * time.Hour)
		r.place("alice", r.goods(8800, 1))
		purge := func(want, left int64) {
			t.Helper()
			removed, err := r.retainer().RunOnce(t.Context())
			if err != nil || int64(removed["client tokens"]) != want || r.claims() != left {
				t.Errorf("%v removed, %d left, %v; want %d and %d", removed, r.claims(), err, want, left)
			}
		}
		purge(0, 6)
		if res := r.Post(alice, "/orders", old); res.Status != http.StatusCreated || string(res.Body) != string(first.Body) {
			t.Errorf("the token again while its claim is there: %d %s", res.Status, res.Body)
		}
		r.Clock.Advance(2 * 24 * time.Hour)
		purge(5, 1)
		if res := r.Post(alice, "/orders", old); res.Status != http.StatusGone {
			t.Errorf("the token again after its claim left: %d %s", res.Status, res.Body)
		}
		if n := r.Int("SELECT COUNT(*) FROM orders"); n != 6 {
			t.Errorf("%d orders", n)
		}
	})
}

func TestAClaimStaysWhileItsTokenIsGood(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRigWith(t, db, order.Config{TokenTTL: 30 * 24 * time.Hour})
		r.place("alice", r.goods(8800, 1))
		r.Clock.Advance(29 * 24 * time.Hour)
		if removed, err := r.retainer().RunOnce(t.Context()); err != nil || removed["client tokens"] != 0 {
			t.Errorf("%v, %v", removed, err)
		}
		// Whatever the time to keep that somebody gives the job.
		n, err := r.service.Retention()[0].Purge(t.Context(), r.Clock.Now(), 10)
		if err != nil || n != 0 || r.claims() != 1 {
			t.Errorf("%d removed, %v", n, err)
		}
	})
}
