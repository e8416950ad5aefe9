package trade

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/sqltext"
)

// StoryEntry is one thing that happened to an order in one service.
type StoryEntry struct {
	At      time.Time `json:"at"`
	Service string    `json:"service"`
	What    string    `json:"what"`            // "order CREATED → PAID (pay)", "effect points.grant", "event OrderPaid v2"
	Key     string    `json:"key,omitempty"`   // of the effect, the event, or the request that led to the transition
	Cause   string    `json:"cause,omitempty"` // for example the payment transaction
	Detail  string    `json:"detail,omitempty"`
}

// StoryOf reads the order's transitions, effects and events in one service's own database, in the order in which they
// happened. topic is the service's name.
func StoryOf(ctx context.Context, tx convergo.Tx, d sqltext.Dialect, service, orderNo string) ([]StoryEntry, error) {
	story, err := transitionsOf(ctx, tx, d, service, orderNo)
	if err != nil {
		return nil, err
	}
	done, err := EffectsOf(ctx, tx, d, orderNo)
	if err != nil {
		return nil, err
	}
	for _, e := range done {
		what := "effect " + e.Kind
		if e.Reverses != "" {
			what += " (reverses " + string(e.Reverses) + ")"
		}
		story = append(story, StoryEntry{e.At, service, what, string(e.Key), string(e.Cause), e.Detail})
	}
	events, err := eventsOf(ctx, tx, d, service, orderNo)
	if err != nil {
		return nil, err
	}
	story = append(story, events...)
	SortStory(story)
	return story, nil
}

// SortStory puts entries in the order of time; entries of one moment stay as they are.
func SortStory(story []StoryEntry) {
	slices.SortStableFunc(story, func(a, b StoryEntry) int { return cmp.Compare(a.At.UnixMicro(), b.At.UnixMicro()) })
}

func transitionsOf(ctx context.Context, tx convergo.Tx, d sqltext.Dialect, service, orderNo string) (story []StoryEntry, err error) {
	set, err := queriesFor(d)
	if err != nil {
		return nil, err
	}
	rows, err := tx.QueryContext(ctx, set.Get("TransitionsOfOrder"), orderNo, orderNo+"-", orderNo+".")
	if err != nil {
		return nil, fmt.Errorf("read transitions of %s: %w", orderNo, err)
	}
	defer rows.Close()
	for rows.Next() {
		var at int64
		var machine, id, move, from, to, cause, key, actor string
		if err := rows.Scan(&at, &machine, &id, &move, &from, &to, &cause, &key, &actor); err != nil {
			return nil, fmt.Errorf("read transitions of %s: %w", orderNo, err)
		}
		detail := ""
		if actor != "" {
			detail = "by " + actor
		}
		if id != orderNo {
			machine += " " + id
		}
		what := fmt.Sprintf("%s %s → %s (%s)", machine, cmp.Or(from, "·"), to, move)
		story = append(story, StoryEntry{convergo.FromMicros(at), service, what, key, cause, detail})
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read transitions of %s: %w", orderNo, err)
	}
	return story, nil
}

func eventsOf(ctx context.Context, tx convergo.Tx, d sqltext.Dialect, service, orderNo string) (story []StoryEntry, err error) {
	set, err := queriesFor(d)
	if err != nil {
		return nil, err
	}
	rows, err := tx.QueryContext(ctx, set.Get("EventsOfOrder"), service, orderNo)
	if err != nil {
		return nil, fmt.Errorf("read events of %s: %w", orderNo, err)
	}
	defer rows.Close()
	for rows.Next() {
		var at, version int64
		var key, eventType string
		if err := rows.Scan(&at, &key, &eventType, &version); err != nil {
			return nil, fmt.Errorf("read events of %s: %w", orderNo, err)
		}
		what := "event " + eventType
		if version > 0 {
			what += fmt.Sprintf(" v%d", version)
		}
		story = append(story, StoryEntry{At: convergo.Telling(convergo.FromMicros(at)), Service: service, What: what, Key: key})
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read events of %s: %w", orderNo, err)
	}
	return story, nil
}

// StoryPath is where a service tells its part of an order's story. Its first element is the service's name, which
// belongs to the service's Prefixes.
func StoryPath(service, orderNo string) string { return "/" + service + "/story/" + orderNo }

// StoryAnswer is the body of GET /{service}/story/{order_no}.
type StoryAnswer struct {
	OrderNo string       `json:"order_no"`
	Service string       `json:"service"`
	Entries []StoryEntry `json:"entries"`
}

// RegisterStory serves the service's part of an order's story, for the operator, at StoryPath(name, …). An order of which
// the service knows nothing has an empty story. Users ask GET /orders/{no}/story, which knows whose the order is.
func RegisterStory(api huma.API, deps Deps, name string) {
	type input struct {
		OrderNo string `path:"order_no" maxLength:"64"`
	}
	type output struct{ Body StoryAnswer }
	huma.Register(api, huma.Operation{
		OperationID: name + "-story", Method: http.MethodGet, Path: StoryPath(name, "{order_no}"), Tags: []string{name},
		Summary: "What happened to an order in the " + name + " service",
	}, func(ctx context.Context, in *input) (*output, error) {
		if err := RequireOperator(ctx); err != nil {
			return nil, err
		}
		if err := CheckOrderNo(in.OrderNo); err != nil {
			return nil, Invalid("path.order_no", err.Error(), "use an order number from GET /orders")
		}
		out := &output{Body: StoryAnswer{OrderNo: in.OrderNo, Service: name}}
		err := deps.DB.View(ctx, func(ctx context.Context, tx convergo.Tx) (err error) {
			out.Body.Entries, err = StoryOf(ctx, tx, deps.DB.Dialect(), name, in.OrderNo)
			return err
		})
		if out.Body.Entries == nil {
			out.Body.Entries = []StoryEntry{}
		}
		return out, err
	})
}
