package payment

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/machine"
	"github.com/convergo/convergo/trade"
)

type orderRow struct {
	OrderNo         string        `db:"order_no"`
	UserID          string        `db:"user_id"`
	Currency        string        `db:"currency"`
	Payable         int64         `db:"payable"`
	State           machine.State `db:"state"`
	Version         int64         `db:"version"`
	ExpiresAt       int64         `db:"expires_at"`
	Intents         int64         `db:"intents"`
	PaidAmount      int64         `db:"paid_amount"`
	PaidChannel     string        `db:"paid_channel"`
	PaidTransaction string        `db:"paid_transaction"`
	RefundReserved  int64         `db:"refund_reserved"`
	Refunded        int64         `db:"refunded"`
	OpenedAt        int64         `db:"opened_at"`
	UpdatedAt       int64         `db:"updated_at"`
}

type intentRow struct {
	TradeNo   string        `db:"trade_no"`
	OrderNo   string        `db:"order_no"`
	Seq       int64         `db:"seq"`
	Channel   string        `db:"channel"`
	State     machine.State `db:"state"`
	Version   int64         `db:"version"`
	CreatedAt int64         `db:"created_at"`
	UpdatedAt int64         `db:"updated_at"`
}

type receiptRow struct {
	Channel         string `db:"channel"`
	Transaction     string `db:"transaction_id"`
	Kind            string `db:"kind"`
	TradeNo         string `db:"trade_no"`
	OrderNo         string `db:"order_no"`
	UserID          string `db:"user_id"`
	Merchant        string `db:"merchant"`
	Amount          int64  `db:"amount"`
	Currency        string `db:"currency"`
	Class           string `db:"class"`
	State           string `db:"state"`
	Source          string `db:"source"`
	NoticeID        string `db:"notice_id"`
	Deliveries      int64  `db:"deliveries"`
	Conflicts       int64  `db:"conflicts"`
	RefundAttempt   int64  `db:"refund_attempt"`
	ChannelRefundID string `db:"channel_refund_id"`
	Reason          string `db:"reason"`
	ReceivedAt      int64  `db:"received_at"`
	UpdatedAt       int64  `db:"updated_at"`
}

// cause is the identity of the payment: what "the same payment" means.
func (r receiptRow) cause() string { return r.Channel + ":" + r.Transaction }

// digest is the receipt's key in the database.
func (r receiptRow) digest() string { return receiptDigest(r.Channel, r.Transaction, r.Kind) }

// receiptDigest has one text per receipt: a channel's name holds no ":" and a transaction no blank.
func receiptDigest(channelName, transaction, kind string) string {
	d := convergo.Key(channelName + ":" + transaction + " " + kind).Digest()
	return hex.EncodeToString(d[:])
}

// aggregate is what its events are about: the order, or the trade when there is no order.
func (r receiptRow) aggregate() string {
	if r.OrderNo != "" {
		return r.OrderNo
	}
	return r.TradeNo
}

func (r receiptRow) payload() trade.Receipt {
	return trade.Receipt{
		Channel: r.Channel, Transaction: r.Transaction, TradeNo: r.TradeNo, OrderNo: r.OrderNo, UserID: r.UserID,
		Amount: r.Amount, Currency: r.Currency, Class: r.Class,
	}
}

type refundRow struct {
	RefundNo        string        `db:"refund_no"`
	OrderNo         string        `db:"order_no"`
	Channel         string        `db:"channel"`
	Transaction     string        `db:"transaction_id"`
	Amount          int64         `db:"amount"`
	Currency        string        `db:"currency"`
	State           machine.State `db:"state"`
	Version         int64         `db:"version"`
	Attempt         int64         `db:"attempt"`
	ChannelRefundID string        `db:"channel_refund_id"`
	Reason          string        `db:"reason"`
	CreatedAt       int64         `db:"created_at"`
	UpdatedAt       int64         `db:"updated_at"`
}

func (r refundRow) payload() trade.RefundPaid {
	return trade.RefundPaid{
		RefundNo: r.RefundNo, OrderNo: r.OrderNo, Channel: r.Channel, ChannelID: r.ChannelRefundID, Amount: r.Amount, Currency: r.Currency,
		Reason: r.Reason,
	}
}

// attemptKey is the idempotency key of the n-th attempt at a refund: the number itself, then "{number}-2", …; of a receipt
// "RR:{channel}:{transaction}", then "RR2:…", because a channel's transaction may well end in "-2".
func (r refundCall) attemptKey() string {
	switch {
	case r.Attempt <= 1:
		return r.Number
	case r.Receipt:
		return fmt.Sprintf("RR%d:%s:%s", r.Attempt, r.Channel, r.Transaction)
	}
	return fmt.Sprintf("%s-%d", r.Number, r.Attempt)
}

// plain tells whether a text from outside fits a column and a key.
func plain(s string, most int) bool {
	return s != "" && len(s) <= most && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}
