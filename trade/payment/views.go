package payment

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
)

// View is the money side of an order.
type View struct {
	OrderNo        string    `json:"order_no"`
	State          string    `json:"state"`
	Currency       string    `json:"currency"`
	Payable        int64     `json:"payable"` // all amounts are minor units
	PaidAmount     int64     `json:"paid_amount"`
	Channel        string    `json:"channel,omitempty"`
	Transaction    string    `json:"transaction,omitempty"`
	RefundReserved int64     `json:"refund_reserved"` // approved, not back yet
	Refunded       int64     `json:"refunded"`
	ExpiresAt      time.Time `json:"expires_at,omitzero"`
	Intents        []Intent  `json:"intents"`
	Receipts       []Receipt `json:"receipts"`
	Refunds        []Refund  `json:"refunds"`
}

// Receipt is a verified notice and what became of it.
type Receipt struct {
	Channel     string    `json:"channel"`
	Transaction string    `json:"transaction"`
	Type        string    `json:"type"`
	TradeNo     string    `json:"trade_no"`
	Amount      int64     `json:"amount"`
	Currency    string    `json:"currency"`
	Class       string    `json:"class"`
	State       string    `json:"state"`
	Reason      string    `json:"reason,omitempty" doc:"for the operator"`
	Deliveries  int64     `json:"deliveries"` // repeats included
	Conflicts   int64     `json:"conflicts"`  // repeats that said something else
	ReceivedAt  time.Time `json:"received_at"`
}

// Refund is an approved refund and what became of it.
type Refund struct {
	RefundNo        string    `json:"refund_no"`
	Amount          int64     `json:"amount"`
	Currency        string    `json:"currency"`
	State           string    `json:"state"`
	Attempt         int64     `json:"attempt"`
	ChannelRefundID string    `json:"channel_refund_id,omitempty"`
	Reason          string    `json:"reason,omitempty"`
	CreatedAt       time.Time `json:"created_at"`
}

// Case is something about money that a person should know of, or has to settle.
type Case struct {
	Kind        string    `json:"kind" db:"kind"` // a receipt's class, CONFLICTING_NOTICE, or REFUND_FAILED
	Channel     string    `json:"channel" db:"channel"`
	Transaction string    `json:"transaction" db:"transaction_id"`
	RefundNo    string    `json:"refund_no,omitempty" db:"refund_no"`
	TradeNo     string    `json:"trade_no,omitempty" db:"trade_no"`
	OrderNo     string    `json:"order_no,omitempty" db:"order_no"`
	Amount      int64     `json:"amount" db:"amount"`
	Currency    string    `json:"currency" db:"currency"`
	State       string    `json:"state" db:"state"` // REFUNDED is settled; REFUND_FAILED, FAILED and HELD wait for a person
	Reason      string    `json:"reason,omitempty" db:"reason"`
	Deliveries  int64     `json:"deliveries,omitempty" db:"deliveries"`
	Conflicts   int64     `json:"conflicts,omitempty" db:"conflicts"`
	At          time.Time `json:"at" db:"-"`
	AtMicros    int64     `json:"-" db:"at"`
}

// Kinds of cases that are no receipt's class.
const (
	CaseConflict     = "CONFLICTING_NOTICE" // an applied payment was notified again with other content
	CaseRefundFailed = "REFUND_FAILED"
)

func (s *Service) viewRoutes(api huma.API) {
	tags := []string{Name}
	huma.Register(api, huma.Operation{
		OperationID: "list-payment-cases", Method: http.MethodGet, Path: "/payments/cases", Tags: tags,
		Summary:     "Money that fitted nothing, and refunds that failed; newest first",
		Description: "Operator. Of cases of one moment that do not fit on a page some may be on the next page again.",
	}, s.listCases)
	huma.Register(api, huma.Operation{
		OperationID: "get-payment", Method: http.MethodGet, Path: "/payments/{order_no}", Tags: tags,
		Summary: "The money side of an order",
	}, s.getPayment)
}

type viewOutput struct{ Body View }

func (s *Service) getPayment(ctx context.Context, in *struct {
	OrderNo string `path:"order_no" maxLength:"64"`
}) (*viewOutput, error) {
	var out *viewOutput
	err := s.deps.DB.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
		order, err := find[orderRow](ctx, tx, s, "FindOrder", in.OrderNo)
		if err != nil {
			return err
		}
		if order == nil || !trade.Owns(ctx, order.UserID) {
			return trade.NotFound("path.order_no", "no order of yours with a payment has this number")
		}
		view, err := s.view(ctx, tx, *order)
		out = &viewOutput{view}
		return err
	})
	return out, err
}

func (s *Service) view(ctx context.Context, tx convergo.Tx, o orderRow) (View, error) {
	v := View{
		OrderNo: o.OrderNo, State: string(o.State), Currency: o.Currency, Payable: o.Payable, PaidAmount: o.PaidAmount, Channel: o.PaidChannel,
		Transaction: o.PaidTransaction, RefundReserved: o.RefundReserved, Refunded: o.Refunded, ExpiresAt: convergo.FromMicros(o.ExpiresAt),
		Intents: []Intent{}, Receipts: []Receipt{}, Refunds: []Refund{},
	}
	intents, err := list[intentRow](ctx, tx, s, "IntentsOfOrder", o.OrderNo)
	if err != nil {
		return v, err
	}
	for _, i := range intents {
		v.Intents = append(v.Intents, s.intentView(i, o))
	}
	receipts, err := list[receiptRow](ctx, tx, s, "ReceiptsOfOrder", o.OrderNo)
	if err != nil {
		return v, err
	}
	for _, r := range receipts {
		v.Receipts = append(v.Receipts, receiptView(ctx, r))
	}
	refunds, err := list[refundRow](ctx, tx, s, "RefundsOfOrder", o.OrderNo)
	if err != nil {
		return v, err
	}
	for _, r := range refunds {
		v.Refunds = append(v.Refunds, Refund{
			r.RefundNo, r.Amount, r.Currency, string(r.State), r.Attempt, r.ChannelRefundID, reasonFor(ctx, r.Reason),
			convergo.FromMicros(r.CreatedAt),
		})
	}
	return v, nil
}

func receiptView(ctx context.Context, r receiptRow) Receipt {
	return Receipt{
		r.Channel, r.Transaction, r.Kind, r.TradeNo, r.Amount, r.Currency, r.Class, r.State, reasonFor(ctx, r.Reason), r.Deliveries, r.Conflicts,
		convergo.FromMicros(r.ReceivedAt),
	}
}

// reasonFor keeps from the buyer what the channel said to the shop, such as that its account is empty.
func reasonFor(ctx context.Context, reason string) string {
	if trade.RequireOperator(ctx) != nil {
		return ""
	}
	return reason
}

// CaseList is a page of cases.
type CaseList struct {
	Cases []Case `json:"cases"`
	// Next is the value of "before" for the next page; empty when this is the last.
	Next string `json:"next,omitempty"`
}

type casesInput struct {
	Kind   string `query:"kind" enum:"LATE,SECOND,WRONG_AMOUNT,UNKNOWN_ORDER,WRONG_MERCHANT,CONFLICTING_NOTICE,REFUND_FAILED" doc:"only this kind"`
	Before string `query:"before" maxLength:"20" doc:"'next' of the page before"`
	Limit  int    `query:"limit" minimum:"1" maximum:"500" default:"100"`
}

type casesOutput struct{ Body CaseList }

func (s *Service) listCases(ctx context.Context, in *casesInput) (*casesOutput, error) {
	if err := trade.RequireOperator(ctx); err != nil {
		return nil, err
	}
	before := int64(1) << 62
	if in.Before != "" {
		var err error
		if before, err = strconv.ParseInt(in.Before, 10, 64); err != nil || before < 0 {
			return nil, trade.Invalid("query.before", "it is not a page's 'next'", "leave it out for the first page")
		}
	}
	out := &casesOutput{}
	err := s.deps.DB.View(ctx, func(ctx context.Context, tx convergo.Tx) (err error) {
		out.Body, err = s.cases(ctx, tx, in.Kind, before, in.Limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// cases merges the newest of each kind into one page; kind is empty for all of them.
func (s *Service) cases(ctx context.Context, tx convergo.Tx, kind string, before int64, limit int) (CaseList, error) {
	all := []Case{}
	for _, k := range caseKinds() {
		if kind != "" && kind != k {
			continue
		}
		statement, args := "CasesOfClass", []any{k, before, limit + 1}
		switch k {
		case CaseConflict:
			statement, args = "ConflictCases", args[1:]
		case CaseRefundFailed:
			statement, args = "RefundCases", args[1:]
		}
		some, err := list[Case](ctx, tx, s, statement, args...)
		if err != nil {
			return CaseList{}, err
		}
		all = append(all, some...)
	}
	slices.SortStableFunc(all, func(a, b Case) int { return cmp.Compare(b.AtMicros, a.AtMicros) })
	page := pageOf(all, limit)
	for i := range page.Cases {
		page.Cases[i].At = convergo.FromMicros(page.Cases[i].AtMicros)
	}
	return page, nil
}

func caseKinds() []string {
	return []string{trade.Late, trade.Second, trade.WrongAmount, trade.UnknownOrder, trade.WrongMerchant, CaseConflict, CaseRefundFailed}
}

// pageOf cuts the page and says where the next one begins. Of cases of one moment at the border the next page shows all, so
// that none is left out; only a whole page of one moment goes on after that moment.
func pageOf(all []Case, limit int) CaseList {
	if len(all) <= limit {
		return CaseList{Cases: all}
	}
	page := CaseList{Cases: all[:limit]}
	next := page.Cases[limit-1].AtMicros
	if all[limit].AtMicros == next && page.Cases[0].AtMicros != next {
		next++
	}
	page.Next = strconv.FormatInt(next, 10)
	return page
}
