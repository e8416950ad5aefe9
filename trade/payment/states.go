package payment

import "github.com/convergo/convergo/machine"

// States of a payment order.
const (
	Open    machine.State = "OPEN"
	Closing machine.State = "CLOSING" // the channel is being told to take no money any more
	Closed  machine.State = "CLOSED"  // no money can come for it; what comes all the same goes back
	Paid    machine.State = "PAID"
)

// States of a refund.
const (
	Reserved     machine.State = "RESERVED"
	Refunded     machine.State = "REFUNDED"
	RefundFailed machine.State = "FAILED"
)

// States of a receipt: what is being done about it. Its class says what it meant.
const (
	receiptRecorded     = "RECORDED" // inside the transaction that judges it; never committed
	receiptGrace        = "GRACE"    // for an unknown trade; will be judged again
	receiptApplied      = "APPLIED"
	receiptRefunding    = "REFUNDING"
	receiptRefunded     = "REFUNDED"
	receiptRefundFailed = "REFUND_FAILED" // a person's case
	receiptHeld         = "HELD"          // not our money: a person's case, never refunded by us
	receiptIgnored      = "IGNORED"
)

// Orders is the payment order's state machine. There is no way out of CLOSED, and none back from PAID.
func Orders() machine.Machine {
	return machine.Machine{
		Name: "payment", Table: "payment_order", ID: "order_no", State: "state", Version: "version",
		Moves: []machine.Move{
			{Name: "closing", From: []machine.State{Open}, To: Closing},
			{Name: "closed", From: []machine.State{Closing}, To: Closed},
			{Name: "pay", From: []machine.State{Open, Closing}, To: Paid},
		},
		Initial: []machine.State{Open, Closed},
	}
}

// Intents is the state machine of an attempt to pay. CLOSED → PAID is a channel that took the money all the same.
func Intents() machine.Machine {
	return machine.Machine{
		Name: "intent", Table: "payment_intent", ID: "trade_no", State: "state", Version: "version",
		Moves: []machine.Move{
			{Name: "close", From: []machine.State{Open}, To: Closed},
			{Name: "pay", From: []machine.State{Open, Closed}, To: Paid},
		},
	}
}

// Refunds is a refund's state machine.
func Refunds() machine.Machine {
	return machine.Machine{
		Name: "payment_refund", Table: "payment_refund", ID: "refund_no", State: "state", Version: "version",
		Moves: []machine.Move{
			{Name: "refund", From: []machine.State{Reserved}, To: Refunded},
			{Name: "fail", From: []machine.State{Reserved}, To: RefundFailed},
		},
	}
}
