package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/trade"
)

// operationsRoutes registers what operators see and do with a service's outbox and inbox, below /ops/{service}.
func operationsRoutes(api huma.API, u *unit) {
	o := operations{u}
	base := "/ops/" + u.service.Name()
	route := func(id, method, path, summary string) huma.Operation {
		return huma.Operation{OperationID: id + "-" + u.service.Name(), Method: method, Path: base + path, Summary: summary, Tags: []string{"ops"}}
	}
	huma.Register(api, route("backlog", http.MethodGet, "/backlog", "What is unfinished, and since when"), o.backlog)
	huma.Register(api, route("stats", http.MethodGet, "/stats", "Counts since this process started"), o.stats)
	huma.Register(api, route("list-dead-letters", http.MethodGet, "/dead-letters", "Messages that the service gave up applying"), o.deadLetters)
	huma.Register(api, route("redrive-dead-letter", http.MethodPost, "/dead-letters/{id}/redrive", "Apply a dead letter again"), o.redriveLetter)
	huma.Register(api, route("discard-dead-letter", http.MethodPost, "/dead-letters/{id}/discard", "Give a dead letter up"), o.discardLetter)
	huma.Register(api, route("list-dead-events", http.MethodGet, "/dead-events", "Events that the relay gave up sending"), o.deadEvents)
	huma.Register(api, route("redrive-dead-event", http.MethodPost, "/dead-events/{id}/redrive", "Send a dead event again"), o.redriveEvent)
	huma.Register(api, route("discard-dead-event", http.MethodPost, "/dead-events/{id}/discard", "Give a dead event up"), o.discardEvent)
	huma.Register(api, route("list-acts", http.MethodGet, "/acts", "What persons did to dead letters and events: who, when, and why"), o.acts)
	huma.Register(api, route("replay", http.MethodPost, "/replay", "Send again what was sent since a time"), o.replay)
}

type operations struct{ *unit }

type queueView struct {
	Count int64      `json:"count"`
	Since *time.Time `json:"since,omitempty" doc:"of the oldest"`
}

func viewQueue(q ops.Queue) queueView {
	if q.Since.IsZero() {
		return queueView{Count: q.Count}
	}
	oldest := convergo.Telling(q.Since)
	return queueView{q.Count, &oldest}
}

type backlogOutput struct {
	Body struct {
		Unfinished  int64     `json:"unfinished" doc:"0 when everything written so far has been sent and applied here"`
		Pending     queueView `json:"pending"`
		DelayedDue  queueView `json:"delayed_due"`
		Delayed     queueView `json:"delayed" doc:"not due yet; no part of unfinished"`
		Waiting     queueView `json:"waiting" doc:"behind a failed event of their aggregate"`
		Dead        queueView `json:"dead_events"`
		InboxWait   queueView `json:"inbox_waiting"`
		InboxDead   queueView `json:"dead_letters"`
		CallsOpen   queueView `json:"calls_open"`
		CallsFailed queueView `json:"calls_failed" doc:"definitely refused; no part of unfinished"`
	}
}

func (o operations) backlog(ctx context.Context, _ *struct{}) (*backlogOutput, error) {
	if err := trade.RequireOperator(ctx); err != nil {
		return nil, err
	}
	b, err := o.store.Backlog(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	var out backlogOutput
	out.Body.Unfinished = b.Unfinished()
	for q, view := range map[*queueView]ops.Queue{
		&out.Body.Pending: b.Pending, &out.Body.DelayedDue: b.DelayedDue, &out.Body.Delayed: b.Delayed, &out.Body.Waiting: b.Waiting,
		&out.Body.Dead: b.Dead, &out.Body.InboxWait: b.InboxWait, &out.Body.InboxDead: b.InboxDead, &out.Body.CallsOpen: b.CallsOpen,
		&out.Body.CallsFailed: b.CallsFailed,
	} {
		*q = viewQueue(view)
	}
	return &out, nil
}

type statsOutput struct {
	Body struct {
		EventsSent      int64  `json:"events_sent"`
		SendFailures    int64  `json:"send_failures"`
		Lanes           int    `json:"lanes"`
		BrokerOutage    bool   `json:"broker_outage"`
		Applied         int64  `json:"applied"`
		Duplicates      int64  `json:"duplicates"`
		ApplyFailures   int64  `json:"apply_failures"`
		CallsMade       int64  `json:"calls_made"`
		CallsTakenOver  int64  `json:"calls_taken_over"`
		CallsAsked      int64  `json:"calls_asked" doc:"questions to the other side about an ambiguous call"`
		Commits         int64  `json:"commits" doc:"of the service's database that this process made; concurrent transactions share one"`
		Transactions    int64  `json:"transactions" doc:"that were committed"`
		Statements      int64  `json:"statements"`
		LastRelayError  string `json:"last_relay_error,omitempty"`
		ServiceDatabase string `json:"service"`
	}
}

func (o operations) stats(ctx context.Context, _ *struct{}) (*statsOutput, error) {
	if err := trade.RequireOperator(ctx); err != nil {
		return nil, err
	}
	var out statsOutput
	b := &out.Body
	r, c := o.relay.Stats(), o.calls.Stats()
	b.ServiceDatabase = o.service.Name()
	b.EventsSent, b.SendFailures, b.Lanes, b.BrokerOutage, b.LastRelayError = r.Sent, r.Failed, r.Lanes, r.InOutage, r.LastError
	b.CallsMade, b.CallsTakenOver, b.CallsAsked = c.Made, c.TakenOver, c.Asked
	b.Commits, b.Transactions, b.Statements = o.store.counts()
	if o.inbox != nil {
		i := o.inbox.Stats()
		b.Applied, b.Duplicates, b.ApplyFailures = i.Applied, i.Duplicates, i.Failed
	}
	return &out, nil
}

type eventView struct {
	Key       convergo.Key      `json:"key"`
	MessageID string            `json:"message_id"`
	Type      string            `json:"type"`
	Topic     string            `json:"topic"`
	Aggregate string            `json:"aggregate"`
	Version   int64             `json:"version"`
	Headers   map[string]string `json:"headers,omitempty"`
	Payload   string            `json:"payload" doc:"as text, or as base64 when payload_base64 is true"`
	Base64    bool              `json:"payload_base64"`
	CreatedAt time.Time         `json:"created_at"`
}

func viewEvent(e convergo.Event) eventView {
	v := eventView{
		Key: e.Key, MessageID: e.MessageID, Type: e.Type, Topic: e.Topic, Aggregate: e.Aggregate.String(), Version: e.Version,
		Headers: e.Headers, Payload: string(e.Payload), CreatedAt: convergo.Telling(e.CreatedAt),
	}
	if !utf8.Valid(e.Payload) {
		v.Payload, v.Base64 = base64.StdEncoding.EncodeToString(e.Payload), true
	}
	return v
}

type deadView struct {
	ID       string    `json:"id"`
	Event    eventView `json:"event"`
	Attempts int       `json:"attempts"`
	Error    string    `json:"error"`
	Place    string    `json:"place" doc:"where it failed"`
	DiedAt   time.Time `json:"died_at"`
	Held     bool      `json:"held" doc:"later ones of its aggregate wait for it"`
	Bytes    int64     `json:"payload_bytes" doc:"how long the payload is in the store; of one that is longer than it may be, payload is empty"`
}

type pageInput struct {
	After string `query:"after" maxLength:"64" doc:"the last id of the page before"`
	Limit int    `query:"limit" minimum:"1" maximum:"500" default:"100"`
}

type deadOutput struct {
	Body struct {
		Dead []deadView `json:"dead" doc:"oldest first; fewer than asked for when their payloads are 8 MiB together; none is the end"`
	}
}

func (o operations) deadLetters(ctx context.Context, in *pageInput) (*deadOutput, error) {
	if err := trade.RequireOperator(ctx); err != nil {
		return nil, err
	}
	letters, err := o.store.DeadLetters(ctx, "", in.Limit, in.After)
	if err != nil {
		return nil, err
	}
	var out deadOutput
	out.Body.Dead = make([]deadView, 0, len(letters))
	for _, l := range letters {
		out.Body.Dead = append(out.Body.Dead, deadView{l.ID, viewEvent(l.Event), l.Attempts, l.Error, l.Place, l.DiedAt, l.Held, int64(len(l.Event.Payload))})
	}
	return &out, nil
}

func (o operations) deadEvents(ctx context.Context, in *pageInput) (*deadOutput, error) {
	if err := trade.RequireOperator(ctx); err != nil {
		return nil, err
	}
	var after int64
	if in.After != "" {
		var err error
		if after, err = strconv.ParseInt(in.After, 10, 64); err != nil {
			return nil, trade.Invalid("query.after", "is not the id of a dead event", "use the last id of the page before")
		}
	}
	events, err := o.store.DeadEvents(ctx, in.Limit, after)
	if err != nil {
		return nil, err
	}
	var out deadOutput
	out.Body.Dead = make([]deadView, 0, len(events))
	for _, e := range events {
		out.Body.Dead = append(out.Body.Dead, deadView{
			strconv.FormatInt(e.ID, 10), viewEvent(e.Event), e.Attempts, e.Error, e.Place, e.DiedAt, e.Held, e.PayloadBytes,
		})
	}
	return &out, nil
}

type redriveInput struct {
	Key  string `header:"Idempotency-Key" required:"true" doc:"1 to 255 bytes, your choice"`
	ID   string `path:"id" maxLength:"64"`
	Body *struct {
		Reason string `json:"reason,omitempty" maxLength:"255" doc:"why; kept on record"`
	}
}

func (r redriveInput) reason() string {
	if r.Body == nil {
		return ""
	}
	return r.Body.Reason
}

type discardInput struct {
	Key  string `header:"Idempotency-Key" required:"true" doc:"1 to 255 bytes, your choice"`
	ID   string `path:"id" maxLength:"64"`
	Body struct {
		Reason string `json:"reason" minLength:"3" maxLength:"255" doc:"why; kept on record"`
	}
}

type actOutput struct {
	Body struct {
		ID   string `json:"id"`
		Done string `json:"done"`
	}
}

type actsInput struct {
	After int64 `query:"after" minimum:"0" doc:"the last seq of the page before"`
	Limit int   `query:"limit" minimum:"1" maximum:"500" default:"100"`
}

type actsOutput struct {
	Body struct {
		Acts []actLine `json:"acts" doc:"oldest first; none is the end"`
	}
}

func (o operations) acts(ctx context.Context, in *actsInput) (*actsOutput, error) {
	if err := trade.RequireOperator(ctx); err != nil {
		return nil, err
	}
	acts, err := o.store.Acts(ctx, in.Limit, in.After)
	if err != nil {
		return nil, err
	}
	var out actsOutput
	out.Body.Acts = linesOfActs(acts)
	return &out, nil
}

// keepable refuses a reason of which only a part would be on record: the schema counts characters, the record bytes.
func keepable(reason string) error {
	if len(reason) > ops.MaxText {
		return trade.Invalid("body.reason", fmt.Sprintf("the reason has %d bytes of UTF-8", len(reason)), fmt.Sprintf("say it in %d bytes", ops.MaxText))
	}
	return nil
}

// act runs an operator's change, in the transaction of the request's Idempotency-Key.
func act(ctx context.Context, id, done, reason string, change func(ctx context.Context, by string) error) (*actOutput, error) {
	if err := trade.RequireOperator(ctx); err != nil {
		return nil, err
	}
	if err := keepable(reason); err != nil {
		return nil, err
	}
	by, _ := trade.PrincipalOf(ctx)
	switch err := change(ctx, by.String()); {
	case errors.Is(err, ops.ErrNotFound):
		return nil, trade.NotFound("path.id", ops.ErrNotFound.Error())
	case errors.Is(err, ops.ErrEarlierDead):
		return nil, trade.Conflict("path.id", ops.ErrEarlierDead.Error(), "begin with the oldest of the list")
	case errors.Is(err, ops.ErrQueued):
		return nil, trade.Conflict("path.id", ops.ErrQueued.Error(), "redrive it when the backlog has no inbox_waiting")
	case err != nil:
		return nil, err
	}
	var out actOutput
	out.Body.ID, out.Body.Done = id, done
	return &out, nil
}

// afterCommit wakes a loop when the request's change can be seen.
func afterCommit(ctx context.Context, wake func()) {
	if tx, ok := trade.TxOf(ctx).(convergo.AfterCommit); ok {
		tx.AfterCommit(wake)
	}
}

func (o operations) redriveLetter(ctx context.Context, in *redriveInput) (*actOutput, error) {
	out, err := act(ctx, in.ID, "redriven", in.reason(), func(ctx context.Context, by string) error {
		return o.store.RedriveLetter(ctx, in.ID, by, in.reason(), time.Now())
	})
	if err == nil && o.inbox != nil {
		afterCommit(ctx, o.inbox.Wake)
	}
	return out, err
}

func (o operations) discardLetter(ctx context.Context, in *discardInput) (*actOutput, error) {
	out, err := act(ctx, in.ID, "discarded", in.Body.Reason, func(ctx context.Context, by string) error {
		return o.store.DiscardLetter(ctx, in.ID, by, in.Body.Reason, time.Now())
	})
	if err == nil && o.inbox != nil {
		afterCommit(ctx, o.inbox.Wake)
	}
	return out, err
}

func (o operations) onEvent(
	ctx context.Context, id, done, reason string, change func(ctx context.Context, id int64, by string) error,
) (*actOutput, error) {
	out, err := act(ctx, id, done, reason, func(ctx context.Context, by string) error {
		n, err := strconv.ParseInt(id, 10, 64)
		if err != nil {
			return fmt.Errorf("%w: no dead event has this id", ops.ErrNotFound)
		}
		return change(ctx, n, by)
	})
	if err == nil {
		afterCommit(ctx, o.relay.Wake)
	}
	return out, err
}

func (o operations) redriveEvent(ctx context.Context, in *redriveInput) (*actOutput, error) {
	return o.onEvent(ctx, in.ID, "redriven", in.reason(), func(ctx context.Context, id int64, by string) error {
		return o.store.RedriveEvent(ctx, id, by, in.reason(), time.Now())
	})
}

func (o operations) discardEvent(ctx context.Context, in *discardInput) (*actOutput, error) {
	return o.onEvent(ctx, in.ID, "discarded", in.Body.Reason, func(ctx context.Context, id int64, by string) error {
		return o.store.DiscardEvent(ctx, id, by, in.Body.Reason, time.Now())
	})
}

type replayInput struct {
	Key  string `header:"Idempotency-Key" required:"true" doc:"1 to 255 bytes, your choice"`
	Body struct {
		Since  time.Time `json:"since" doc:"events written at or after this time, UTC"`
		Reason string    `json:"reason,omitempty" maxLength:"255" doc:"why; kept on record"`
	}
}

type replayOutput struct {
	Body struct {
		Events int `json:"events" doc:"how many are sent again"`
	}
}

func (o operations) replay(ctx context.Context, in *replayInput) (*replayOutput, error) {
	if err := trade.RequireOperator(ctx); err != nil {
		return nil, err
	}
	if err := keepable(in.Body.Reason); err != nil {
		return nil, err
	}
	by, _ := trade.PrincipalOf(ctx)
	now := time.Now()
	if err := o.store.Record(ctx, replayed(in.Body.Since, by.String(), in.Body.Reason, now)); err != nil {
		return nil, err
	}
	n, err := o.store.Replay(ctx, in.Body.Since, now)
	if err != nil {
		return nil, err
	}
	afterCommit(ctx, o.relay.Wake)
	var out replayOutput
	out.Body.Events = n
	return &out, nil
}
