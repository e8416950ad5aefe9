package drill

import "strings"

// Names of the faults in a report: one for each, whoever made it.
const (
	FaultSecondPayment = "second payment"
	FaultWrongAmount   = "payment of a wrong amount"
	FaultWrongMerchant = "payment to another merchant"
	FaultDeclined      = "payment declined"
	FaultLatePayment   = "payment after close"
	FaultRace          = "payment at the moment of the timeout"
	FaultUnknownOrder  = "payment for an unknown order"
	FaultHandlerBefore = "handler failed before its work"
	FaultHandlerAfter  = "handler failed after its work"
	FaultPoison        = "poison event"
	FaultKill          = "platform killed (SIGKILL)"
	// FaultBelieved must stay 0: a forged notice that the platform took for a payment.
	FaultBelieved = "forged notice believed"
)

// worldFaults are what the simulated outside calls its faults. Those without a name here are the buyers', who count them.
func worldFaults() map[string]string {
	return map[string]string{
		"notice_copy": "notice repeated", "notice_forged": "notice forged", "notice_held_back": "notice late or out of order",
		"notice_not_acked": "notice not acknowledged at once", "forged_accepted": FaultBelieved,
		"answer_lost": "outside did it, answer lost", "error_503": "outside unavailable (503)", "refund_refused": "refund refused",
		"payment_declined": "", "wrong_amount": "", "wrong_currency": "", "wrong_merchant": "", "unknown_order": "", "late_or_second": "",
	}
}

// CountFaults adds the faults that the outside world made (by its names), and lists of single ones. Each kind is counted
// once and has one name.
func (r *Report) CountFaults(world map[string]int64, lists ...[]Fault) {
	if r.Faults == nil {
		r.Faults = map[string]int{}
	}
	names := worldFaults()
	for kind, n := range world {
		name, known := names[kind]
		if !known {
			name = strings.ReplaceAll(kind, "_", " ")
		}
		if name != "" && n > 0 {
			r.Faults[name] += int(n)
		}
	}
	for _, list := range lists {
		for _, f := range list {
			r.Faults[f.Kind]++
		}
	}
}
