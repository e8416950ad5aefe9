package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/convergo/convergo/drill/check"
)

// deadLetter is what the drill's operator reads of one.
type deadLetter struct {
	ID    string `json:"id"`
	Error string `json:"error"`
	Event struct {
		Key       string `json:"key"`
		Aggregate string `json:"aggregate"`
	} `json:"event"`
}

// deadLetters lists the open dead letters of a service.
func (c *Client) deadLetters(ctx context.Context, service string) ([]deadLetter, error) {
	var page struct {
		Dead []deadLetter `json:"dead"`
	}
	err := c.operator(ctx, http.MethodGet, "/ops/"+service+"/dead-letters?limit=500", "", nil, &page)
	return page.Dead, err
}

// DiscardPoison does what an operator would: it looks at the dead letters and gives up those that can never be applied.
// It returns how many, and an error for dead letters that are not the drill's own poison.
func (c *Client) DiscardPoison(ctx context.Context) (discarded int, err error) {
	for _, service := range check.Services() {
		letters, listing := c.deadLetters(ctx, service)
		if listing != nil {
			return discarded, listing
		}
		for _, l := range letters {
			if !poisoned(l.Event.Aggregate) {
				err = errors.Join(err, fmt.Errorf("dead letter in %s: %s: %s", service, l.Event.Key, l.Error))
				continue
			}
			body := map[string]string{"reason": "the drill's own poison"}
			if e := c.operator(ctx, http.MethodPost, "/ops/"+service+"/dead-letters/"+url.PathEscape(l.ID)+"/discard", "discard:"+l.ID, body, nil); e != nil {
				return discarded, e
			}
			discarded++
		}
	}
	return discarded, err
}

// Unfinished is how much is still to be done in all services, dead letters excepted.
func (c *Client) Unfinished(ctx context.Context) (int64, error) {
	var sum int64
	for _, service := range check.Services() {
		var b struct {
			Unfinished int64 `json:"unfinished"`
			Dead       struct {
				Count int64 `json:"count"`
			} `json:"dead_letters"`
		}
		if err := c.operator(ctx, http.MethodGet, "/ops/"+service+"/backlog", "", nil, &b); err != nil {
			return 0, err
		}
		sum += b.Unfinished - b.Dead.Count
	}
	return sum, nil
}

// Duplicates is how many events the consumers noticed as applied before, since the process started.
func (c *Client) Duplicates(ctx context.Context) (int64, error) {
	var sum int64
	for _, service := range check.Services() {
		var s struct {
			Duplicates int64 `json:"duplicates"`
		}
		if err := c.operator(ctx, http.MethodGet, "/ops/"+service+"/stats", "", nil, &s); err != nil {
			return 0, err
		}
		sum += s.Duplicates
	}
	return sum, nil
}

// Settle waits until every order is in a final state and nothing is left to do, and then reads each order. quiet tells
// whether the outside world is done as well. It returns what is wrong: orders that did not get where they should.
func (s *Shop) Settle(ctx context.Context, quiet func(context.Context) (bool, error)) error {
	var left int64
	var outside bool
	var open int
	waiting := func(err error) error {
		return fmt.Errorf("%d rows were still to be done, %d orders not final%s, the outside done: %t: %w", left, open, s.anOpenOne(), outside, err)
	}
	for calm := 0; calm < 2; {
		var err error
		if left, err = s.Client.Unfinished(ctx); err != nil {
			return waiting(err)
		}
		if outside, err = quiet(ctx); err != nil {
			return waiting(err)
		}
		if open, err = s.open(ctx); err != nil {
			return waiting(err)
		}
		if left == 0 && outside && open == 0 {
			calm++ // twice in a row: what one side had just finished may have given the other something to do
		} else {
			calm = 0
		}
		select {
		case <-ctx.Done():
			return waiting(ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

// open reads the orders that were not final when they were last read, and returns how many still are not.
func (s *Shop) open(ctx context.Context) (int, error) {
	open := 0
	for i := range s.Results {
		r := &s.Results[i]
		if r.OrderNo == "" || final(r.Status, r.Order) {
			continue
		}
		var o PlacedOrder
		if err := s.Client.operator(ctx, http.MethodGet, "/orders/"+r.OrderNo, "", nil, &o); err != nil {
			return 0, err
		}
		r.Status, r.Reason, r.Free = o.Status, o.Reason, o.Payable == 0
		if !final(r.Status, r.Order) {
			open++
		}
	}
	return open, nil
}

// anOpenOne names an order that is not final, for the report.
func (s *Shop) anOpenOne() string {
	for _, r := range s.Results {
		if r.OrderNo != "" && !final(r.Status, r.Order) {
			return fmt.Sprintf(" (%s, %s, of a buyer who %s)", r.OrderNo, r.Status, r.Order.Behaviour)
		}
	}
	return ""
}

// final: a returned order is COMPLETED only until its refund overtakes it.
func final(status string, o Order) bool {
	return status == "CANCELED" || status == "REFUNDED" || (status == "COMPLETED" && !o.returnsAll())
}

// Unexpected lists the orders whose final state does not fit what their buyer did.
func (s *Shop) Unexpected() []string {
	const most = 10
	var wrong []string
	for _, r := range s.Results {
		if r.expected() {
			continue
		}
		status := r.Status
		if status == "" {
			status = "in a state that was not read"
		}
		wrong = append(wrong, fmt.Sprintf("order %s (%s) of a buyer who %s is %s %s", r.OrderNo, r.Order.Ref, r.Order.Behaviour, status, r.Reason))
	}
	if len(wrong) > most {
		wrong = append(wrong[:most], fmt.Sprintf("and %d more orders", len(wrong)-most))
	}
	return wrong
}
