package order

import "github.com/convergo/convergo/machine"

// States of an order.
const (
	Created   machine.State = "CREATED"
	Closing   machine.State = "CLOSING" // wanted closed; the payment side makes sure that no money can come any more
	Canceled  machine.State = "CANCELED"
	Paid      machine.State = "PAID"
	Shipped   machine.State = "SHIPPED"
	Completed machine.State = "COMPLETED"
	Refunding machine.State = "REFUNDING" // all of it is asked back
	Refunded  machine.State = "REFUNDED"  // all of it is back
)

// States of a refund. A partial refund leaves the order's state alone, so it has its own row and machine.
const (
	RefundRequested machine.State = "REQUESTED"
	RefundDone      machine.State = "REFUNDED"
	RefundFailed    machine.State = "FAILED"
)

// Orders is the order's state machine. CLOSING → PAID is the payment that was already on its way; there is no way from
// CANCELED, so money that comes later can only be given back.
func Orders() machine.Machine {
	return machine.Machine{
		Name: "order", Table: "orders", ID: "order_no", State: "status", Version: "version",
		Moves: []machine.Move{
			{Name: "close", From: []machine.State{Created}, To: Closing},
			{Name: "cancel", From: []machine.State{Closing}, To: Canceled},
			{Name: "pay", From: []machine.State{Created, Closing}, To: Paid},
			{Name: "ship", From: []machine.State{Paid}, To: Shipped},
			{Name: "complete", From: []machine.State{Shipped}, To: Completed},
			{Name: "refund", From: []machine.State{Paid, Shipped, Completed}, To: Refunding},
			{Name: "refunded", From: []machine.State{Refunding}, To: Refunded},
		},
	}
}

// Refunds is a refund's state machine.
func Refunds() machine.Machine {
	return machine.Machine{
		Name: "refund", Table: "refund", ID: "refund_no", State: "status", Version: "version",
		Moves: []machine.Move{
			{Name: "finish", From: []machine.State{RefundRequested}, To: RefundDone},
			{Name: "fail", From: []machine.State{RefundRequested}, To: RefundFailed},
		},
	}
}
