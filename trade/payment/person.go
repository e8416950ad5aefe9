package payment

import (
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/channel"
)

func (s *Service) personRoutes(api huma.API) {
	huma.Register(api, huma.Operation{
		OperationID: "retry-receipt-refund", Method: http.MethodPost, Path: "/payments/receipt-refunds", Tags: []string{Name},
		DefaultStatus: http.StatusAccepted, Summary: "Try once more to send unapplied money back",
		Description: "Operator. For a receipt in state REFUND_FAILED (GET /payments/cases), when the cause is out of the way: the channel is " +
			"asked about every earlier attempt and then for a refund under a new number. The refund of an order is asked for again with " +
			"POST /orders/{no}/refunds.",
		Errors: []int{http.StatusForbidden, http.StatusNotFound, http.StatusConflict},
	}, s.retryReceiptRefund)
}

type retryInput struct {
	Body struct {
		Channel     string `json:"channel" minLength:"1" maxLength:"32" doc:"as the case says"`
		Transaction string `json:"transaction" minLength:"1" maxLength:"100" doc:"the channel's number of the payment, as the case says"`
	}
}

// retryReceiptRefund goes on where the attempts ended. Every attempt before was definitely refused, so a new key is a new
// question; sendRefund asks about the old keys first all the same.
func (s *Service) retryReceiptRefund(ctx context.Context, in *retryInput) (*struct{ Body Receipt }, error) {
	if err := trade.RequireOperator(ctx); err != nil {
		return nil, err
	}
	tx, digest := trade.TxOf(ctx), receiptDigest(in.Body.Channel, in.Body.Transaction, channel.NoticePaid)
	row, err := find[receiptRow](ctx, tx, s, "FindReceipt", digest)
	if err != nil {
		return nil, err
	}
	if row == nil {
		return nil, trade.NotFound("body.transaction", "no payment with this number was notified by this channel")
	}
	attempt := max(row.RefundAttempt, 1) + 1
	who, _ := trade.PrincipalOf(ctx)
	why := clip(fmt.Sprintf("asked again by %s (%s); before: %s", who, trade.RequestKey(ctx), row.Reason))
	n, err := s.exec(ctx, tx, "RetryReceiptRefund", attempt, why, convergo.Micros(s.now()), digest, row.RefundAttempt)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, trade.Conflict("body.transaction", "the payment is "+row.State+", no refund of it has failed", "see GET /payments/cases")
	}
	call := refundCall{
		Receipt: true, Number: "RR:" + row.cause(), Channel: row.Channel, Transaction: row.Transaction, Amount: row.Amount,
		Currency: row.Currency, Attempt: attempt,
	}
	if err := s.scheduleRefund(ctx, tx, call); err != nil {
		return nil, err
	}
	row.State, row.Reason, row.RefundAttempt = receiptRefunding, why, attempt
	return &struct{ Body Receipt }{receiptView(ctx, *row)}, nil
}
