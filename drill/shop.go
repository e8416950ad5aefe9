package drill

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/convergo/convergo/trade/simulate"
)

// Cashier takes a buyer's money: the simulated payment channel.
type Cashier interface {
	Pay(ctx context.Context, link string, o simulate.PayOptions) (simulate.Payment, error)
}

// Shop is a day being played against a platform.
type Shop struct {
	Day     Day
	Client  *Client
	Cashier Cashier
	Buyers  int // at the same time; default 64
	// Patient buyers wait until the order that they paid is COMPLETED before the next one is placed.
	Patient bool
	// Strangers is how many payments are made under trade numbers that nobody issued.
	Strangers int
	// Progress is called after each finished buyer.
	Progress func()

	mu       sync.Mutex
	sessions map[string]string // bearer by user
	link     string            // to the cashier, that the last buyer left behind
	linked   chan struct{}     // closed when there is one
	Results  []Result
	Faults   []Fault // made by the buyers
}

// Result is what became of one buyer's order.
type Result struct {
	Order   Order
	OrderNo string
	Status  string
	Reason  string
	Free    bool // coupon and points paid all of it, so it was paid at once
}

const channelOfDrill = "standard"

// Open sets the shop up: products, stock, coupons, points.
func (s *Shop) Open(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(s.buyers())
	for _, sku := range slices.Sorted(maps.Keys(s.Day.Products)) {
		p := s.Day.Products[sku]
		g.Go(func() error {
			offers := maps.Clone(p.Prices)
			delete(offers, "")
			body := map[string]any{"currency": s.Day.Currency, "unit_price": p.Prices[""], "offers": offers}
			if err := s.Client.operator(ctx, http.MethodPut, "/products/"+sku, "", body, nil); err != nil {
				return fmt.Errorf("product %s: %w", sku, err)
			}
			receipt := map[string]any{"sku": sku, "quantity": p.Stock, "key": "opening:" + sku}
			if err := s.Client.operator(ctx, http.MethodPost, "/stock/receipts", "opening:"+sku, receipt, nil); err != nil {
				return fmt.Errorf("stock of %s: %w", sku, err)
			}
			return nil
		})
	}
	opening := time.Now().UTC().Add(-time.Hour)
	for _, c := range s.Day.Coupons {
		g.Go(func() error {
			body := map[string]any{
				"code": c.Code, "face_value": c.Value, "currency": s.Day.Currency, "total_limit": c.Limit, "per_user_limit": c.Limit,
				"valid_from": opening, "valid_until": opening.AddDate(0, 0, 1),
			}
			if err := s.Client.operator(ctx, http.MethodPost, "/coupons", "coupon:"+c.Code, body, nil); err != nil {
				return fmt.Errorf("coupon %s: %w", c.Code, err)
			}
			return nil
		})
	}
	for _, user := range slices.Sorted(maps.Keys(s.Day.Grants)) {
		g.Go(func() error {
			body := map[string]any{"key": "opening:" + user, "user": user, "points": s.Day.Grants[user]}
			if err := s.Client.operator(ctx, http.MethodPost, "/points/grants", "opening:"+user, body, nil); err != nil {
				return fmt.Errorf("points of %s: %w", user, err)
			}
			return nil
		})
	}
	return g.Wait()
}

func (s *Shop) buyers() int {
	if s.Buyers <= 0 {
		return 64
	}
	return s.Buyers
}

// Run plays the day. Orders are placed in time order by Buyers at the same time. It returns when every buyer is done,
// which is before the platform is.
func (s *Shop) Run(ctx context.Context) error {
	s.sessions, s.Results = map[string]string{}, make([]Result, len(s.Day.Orders))
	s.link, s.linked = "", make(chan struct{})
	bought, atNight := context.WithCancel(ctx)
	defer atNight()
	g := new(errgroup.Group) // a buyer's trouble is told at the end; it must not stop the others in the middle of a request
	g.SetLimit(s.buyers())
	var later sync.WaitGroup // what buyers do after they left the queue
	failures := make(chan error, len(s.Day.Orders))
	strangers := new(errgroup.Group)
	for i := range s.Strangers {
		strangers.Go(func() error { return s.stranger(bought, i) })
	}
	for i, o := range s.Day.Orders {
		g.Go(func() error {
			then, err := s.buy(ctx, i, o)
			if err != nil {
				return fmt.Errorf("buyer of %s (%s): %w", o.Ref, o.Behaviour, err)
			}
			if then == nil {
				s.done()
				return nil
			}
			later.Go(func() {
				if err := then(ctx); err != nil {
					failures <- fmt.Errorf("buyer of %s (%s): %w", o.Ref, o.Behaviour, err)
				}
				s.done()
			})
			return nil
		})
	}
	err := g.Wait()
	later.Wait()
	atNight()
	err = errors.Join(err, strangers.Wait())
	close(failures)
	for failure := range failures {
		err = errors.Join(err, failure)
	}
	return err
}

func (s *Shop) done() {
	if s.Progress != nil {
		s.Progress()
	}
}

// buy plays one buyer. What it returns, if anything, is the part of his story that must not keep others waiting.
func (s *Shop) buy(ctx context.Context, i int, o Order) (func(context.Context) error, error) {
	bearer, err := s.session(ctx, o.User)
	if err != nil {
		return nil, err
	}
	b := &buyer{shop: s, order: o, bearer: bearer}
	placed, err := b.place(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.Results[i] = Result{Order: o, OrderNo: placed.OrderNo}
	s.mu.Unlock()
	b.no = placed.OrderNo
	then, err := b.behave(ctx)
	if err == nil && then == nil && s.Patient {
		_, err = b.completed(ctx)
	}
	return then, err
}

func (s *Shop) session(ctx context.Context, user string) (string, error) {
	s.mu.Lock()
	bearer := s.sessions[user]
	s.mu.Unlock()
	if bearer != "" {
		return bearer, nil
	}
	var answer struct {
		Token string `json:"token"`
	}
	if err := s.Client.operator(ctx, http.MethodPost, "/users/"+user+"/sessions", "session:"+user, struct{}{}, &answer); err != nil {
		return "", fmt.Errorf("session of %s: %w", user, err)
	}
	s.mu.Lock()
	s.sessions[user] = answer.Token
	s.mu.Unlock()
	return answer.Token, nil
}

// fault counts what a buyer did wrong.
func (s *Shop) fault(kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Faults = append(s.Faults, Fault{Kind: kind, At: time.Now().UTC()})
}

// stranger pays under a trade number that nobody issued, with a link that a buyer left behind. On a day on which nobody
// opens one there are no strangers.
func (s *Shop) stranger(ctx context.Context, i int) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.linked:
	}
	s.mu.Lock()
	link := s.link
	s.mu.Unlock()
	o := simulate.PayOptions{TradeNo: fmt.Sprintf("NOBODY-%06d", i), Amount: 777}
	_, err := s.Cashier.Pay(context.WithoutCancel(ctx), link, o)
	if errors.Is(err, simulate.ErrNotPayable) {
		return nil // the link has expired meanwhile
	}
	if err != nil {
		return fmt.Errorf("stranger: %w", err)
	}
	s.fault(FaultUnknownOrder)
	return nil
}

func (s *Shop) leaveLink(link string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == "" {
		close(s.linked)
	}
	s.link = link
}

// expected tells whether a final state fits the behaviour. An order may also be refused for its coupon's limit or because
// its member has spent his points on another one, and a buyer who was too slow, because the platform was down, finds his
// order closed by the timeout.
func (r Result) expected() bool {
	if r.Status == "CANCELED" && (strings.HasPrefix(r.Reason, "timeout") ||
		(r.Order.Coupon != "" && strings.HasPrefix(r.Reason, "coupon")) || (r.Order.Points > 0 && strings.HasPrefix(r.Reason, "points"))) {
		return true
	}
	switch r.Order.Behaviour {
	case Cancels, Abandons:
		return r.Status == "CANCELED" || (r.Free && r.Status == "COMPLETED")
	case SoldOut:
		return r.Status == "CANCELED"
	case PaysLate, RacesTimeout:
		return r.Status == "CANCELED" || r.Status == "COMPLETED"
	}
	if r.Order.returnsAll() {
		return r.Status == "REFUNDED"
	}
	return r.Status == "COMPLETED"
}
