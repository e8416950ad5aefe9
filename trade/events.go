package trade

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/convergo/convergo"
)

// Event types of the platform. The topic of each is the service that emits it (TopicOf). Every event below is about one
// order and has its number as the aggregate id, so a consumer sees one order's events of one service in order; the
// receipt events of a payment that fits no order have the channel's trade number instead.
const (
	OrderCreated   = "OrderCreated"   // OrderPlaced: hold stock, lock coupon, lock points, assess risk
	OrderPayable   = "OrderPayable"   // Payable: everything is held; a payment may be opened
	OrderClosing   = "OrderClosing"   // Closing: the payment side shall make sure that no money can come any more
	OrderCanceled  = "OrderCanceled"  // Canceled: release what is held
	OrderPaid      = "OrderPaid"      // Paid: deduct, redeem, grant, post, ship, notify
	OrderShipped   = "OrderShipped"   // Moved
	OrderCompleted = "OrderCompleted" // Moved
	RefundApproved = "RefundApproved" // Refund with cash in it: send the money back; Full: all is asked back, ship nothing any more
	OrderRefunded  = "OrderRefunded"  // Refund: the money is back; run the effects backwards
	OrderTimeout   = "OrderTimeout"   // Moved, delayed: the order service's reminder to itself

	StockHeld     = "StockHeld"     // Answer
	StockRejected = "StockRejected" // Answer
	StockDeducted = "StockDeducted" // Answer
	StockReleased = "StockReleased" // Answer
	StockReturned = "StockReturned" // Answer with RefundNo

	CouponLocked   = "CouponLocked"   // Answer with Amount: the coupon's face value in minor units, before it is limited to the goods
	CouponRejected = "CouponRejected" // Answer
	CouponRedeemed = "CouponRedeemed" // Answer
	CouponReturned = "CouponReturned" // Answer: released before payment or given back by a full refund

	PointsLocked   = "PointsLocked"   // Answer with Points
	PointsRejected = "PointsRejected" // Answer
	PointsGranted  = "PointsGranted"  // Answer with Points
	PointsReversed = "PointsReversed" // Answer with Points taken back (Points) and spent points given back (Amount), RefundNo

	RiskApproved = "RiskApproved" // Answer
	RiskRejected = "RiskRejected" // Answer

	PaymentSucceeded    = "PaymentSucceeded"    // Receipt, class APPLY: the order is paid
	PaymentClosed       = "PaymentClosed"       // Answer: no money can come for this order any more
	PaymentRefunded     = "PaymentRefunded"     // RefundPaid
	PaymentRefundFailed = "PaymentRefundFailed" // RefundPaid with Reason: the channel refused for good; a person's case
	ReceiptRecorded     = "ReceiptRecorded"     // Receipt of any class that is our money (not WRONG_MERCHANT)
	ReceiptRefunded     = "ReceiptRefunded"     // Receipt: an unapplied receipt's money went back

	ShipmentDispatched = "ShipmentDispatched" // Answer
	ShipmentDelivered  = "ShipmentDelivered"  // Answer
	ShipmentCanceled   = "ShipmentCanceled"   // Answer
)

// TopicOf is the topic of an event type; empty when the type is unknown.
func TopicOf(eventType string) string { return topics[eventType] }

var topics = map[string]string{
	OrderCreated: "order", OrderPayable: "order", OrderClosing: "order", OrderCanceled: "order", OrderPaid: "order",
	OrderShipped: "order", OrderCompleted: "order", RefundApproved: "order", OrderRefunded: "order", OrderTimeout: "order",
	StockHeld: "inventory", StockRejected: "inventory", StockDeducted: "inventory", StockReleased: "inventory", StockReturned: "inventory",
	CouponLocked: "coupon", CouponRejected: "coupon", CouponRedeemed: "coupon", CouponReturned: "coupon",
	PointsLocked: "points", PointsRejected: "points", PointsGranted: "points", PointsReversed: "points",
	RiskApproved: "risk", RiskRejected: "risk",
	PaymentSucceeded: "payment", PaymentClosed: "payment", PaymentRefunded: "payment", PaymentRefundFailed: "payment",
	ReceiptRecorded: "payment", ReceiptRefunded: "payment",
	ShipmentDispatched: "shipping", ShipmentDelivered: "shipping", ShipmentCanceled: "shipping",
}

// Line is an order line. Amounts are minor units of the order's currency. The shares are zero until the order is payable;
// then Amount = CouponShare + PointsShare + Payable on every line, and they never change again.
type Line struct {
	LineNo      int    `json:"line_no" db:"line_no"` // 1, 2, …
	SKU         string `json:"sku" db:"sku"`
	Quantity    int64  `json:"quantity" db:"quantity"`
	UnitPrice   int64  `json:"unit_price" db:"unit_price"`
	Amount      int64  `json:"amount" db:"amount"` // Quantity × UnitPrice
	CouponShare int64  `json:"coupon_share" db:"coupon_share"`
	PointsShare int64  `json:"points_share" db:"points_share"`
	Payable     int64  `json:"payable" db:"payable"`
}

// OrderPlaced is the payload of OrderCreated.
type OrderPlaced struct {
	OrderNo       string `json:"order_no"`
	UserID        string `json:"user_id"`
	Currency      string `json:"currency"`
	Lines         []Line `json:"lines"`
	GoodsTotal    int64  `json:"goods_total"`
	CouponCode    string `json:"coupon_code,omitempty"`
	PointsToSpend int64  `json:"points_to_spend,omitempty"` // 1 point is worth 1 minor unit
}

// Payable is the payload of OrderPayable.
type Payable struct {
	OrderNo   string    `json:"order_no"`
	UserID    string    `json:"user_id"`
	Currency  string    `json:"currency"`
	Amount    int64     `json:"amount"` // > 0; an order of 0 is paid without the channel
	ExpiresAt time.Time `json:"expires_at"`
}

// Closing is the payload of OrderClosing.
type Closing struct {
	OrderNo string `json:"order_no"`
	Reason  string `json:"reason"` // "timeout", "user", "out_of_stock: …", "coupon: …", "points: …", "risk: …"
}

// Canceled is the payload of OrderCanceled.
type Canceled struct {
	OrderNo       string `json:"order_no"`
	UserID        string `json:"user_id"`
	Reason        string `json:"reason"`
	CouponCode    string `json:"coupon_code,omitempty"`
	PointsToSpend int64  `json:"points_to_spend,omitempty"`
}

// Paid is the payload of OrderPaid.
type Paid struct {
	OrderNo     string `json:"order_no"`
	UserID      string `json:"user_id"`
	Currency    string `json:"currency"`
	GoodsTotal  int64  `json:"goods_total"`
	CouponCode  string `json:"coupon_code,omitempty"`
	CouponTotal int64  `json:"coupon_total"` // sum of the lines' CouponShare
	PointsSpent int64  `json:"points_spent"` // sum of the lines' PointsShare
	Payable     int64  `json:"payable"`      // GoodsTotal − CouponTotal − PointsSpent
	Channel     string `json:"channel"`      // "none" for an order of 0
	Transaction string `json:"transaction"`  // the payment that paid it; the cause
	Lines       []Line `json:"lines"`
}

// Moved is the payload of OrderShipped, OrderCompleted and OrderTimeout.
type Moved struct {
	OrderNo string `json:"order_no"`
	UserID  string `json:"user_id"`
}

// RefundLine is what of a line is refunded.
type RefundLine struct {
	LineNo      int    `json:"line_no"`
	SKU         string `json:"sku"`
	Quantity    int64  `json:"quantity"`
	Amount      int64  `json:"amount"` // list amount of the pieces = CouponShare + PointsShare + Cash
	CouponShare int64  `json:"coupon_share"`
	PointsShare int64  `json:"points_share"`
	Cash        int64  `json:"cash"`
}

// Refund is the payload of RefundApproved and OrderRefunded. The totals are sums over the lines.
type Refund struct {
	RefundNo    string       `json:"refund_no"` // unique; the channel's idempotency key
	OrderNo     string       `json:"order_no"`
	UserID      string       `json:"user_id"`
	Currency    string       `json:"currency"`
	Channel     string       `json:"channel"`
	Transaction string       `json:"transaction"` // the payment that is refunded
	Lines       []RefundLine `json:"lines"`
	Amount      int64        `json:"amount"`
	CouponTotal int64        `json:"coupon_total"`
	PointsBack  int64        `json:"points_back"` // spent points given back
	Cash        int64        `json:"cash"`
	// Of the whole order, this refund included: how much cash has been refunded, and how much was paid. A consumer that
	// takes back a proportional effect (points granted) works from the cumulative figures, so that parts sum to the whole.
	CashSoFar int64 `json:"cash_so_far"`
	CashPaid  int64 `json:"cash_paid"`
	// Full: with this refund everything is refunded (OrderRefunded, once per order at most) or asked back (RefundApproved, again
	// after one that failed).
	Full   bool   `json:"full"`
	Coupon string `json:"coupon_code,omitempty"`
}

// Answer is the payload of most events with which a service answers an order event.
type Answer struct {
	OrderNo  string `json:"order_no"`
	UserID   string `json:"user_id,omitempty"`
	Currency string `json:"currency,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Amount   int64  `json:"amount,omitempty"`
	Points   int64  `json:"points,omitempty"`
	RefundNo string `json:"refund_no,omitempty"`
}

// RefundPaid is the payload of PaymentRefunded and PaymentRefundFailed.
type RefundPaid struct {
	RefundNo  string `json:"refund_no"`
	OrderNo   string `json:"order_no"`
	Channel   string `json:"channel"`
	ChannelID string `json:"channel_refund_id,omitempty"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
	Reason    string `json:"reason,omitempty"`
}

// Receipt classes: what a verified payment notice meant.
const (
	Apply         = "APPLY"
	Late          = "LATE"           // the order was closed before
	Second        = "SECOND"         // the order is paid by another transaction
	WrongAmount   = "WRONG_AMOUNT"   // amount or currency differ from the order's
	UnknownOrder  = "UNKNOWN_ORDER"  // no such trade of ours, also after the grace period
	WrongMerchant = "WRONG_MERCHANT" // not our money: recorded as a case, never refunded by us
	Ignored       = "IGNORED"        // a notice that moves nothing forward, such as a late failure
)

// Receipt is the payload of PaymentSucceeded, ReceiptRecorded and ReceiptRefunded.
type Receipt struct {
	Channel     string `json:"channel"`
	Transaction string `json:"transaction"`
	TradeNo     string `json:"trade_no"`           // our number at the channel (the intent's id), as the notice named it
	OrderNo     string `json:"order_no,omitempty"` // empty for UNKNOWN_ORDER
	UserID      string `json:"user_id,omitempty"`
	Amount      int64  `json:"amount"`
	Currency    string `json:"currency"`
	Class       string `json:"class"`
}

// NewEvent is an event of the platform about an order, with the payload as JSON. key is its business identity; when
// empty the default is used.
func NewEvent(eventType string, key convergo.Key, orderNo string, version int64, payload any) (convergo.Event, error) {
	topic := TopicOf(eventType)
	if topic == "" {
		return convergo.Event{}, fmt.Errorf("event type %q is not in trade.TopicOf", eventType)
	}
	body, err := json.Marshal(payload)
	if err != nil {
		return convergo.Event{}, fmt.Errorf("payload of %s for %s: %w", eventType, orderNo, err)
	}
	return convergo.Event{
		Key: key, Type: eventType, Topic: topic, Aggregate: convergo.Aggregate{Type: topic, ID: orderNo},
		Version: version, Payload: body, Headers: map[string]string{"Content-Type": "application/json"},
	}, nil
}

// Decode reads an event's payload. An error is permanent: no later attempt can read it.
func Decode[T any](e convergo.Event) (T, error) {
	var v T
	if err := json.Unmarshal(e.Payload, &v); err != nil {
		return v, convergo.Permanent(fmt.Errorf("payload of %s %s: %w", e.Type, e.Key, err))
	}
	return v, nil
}
