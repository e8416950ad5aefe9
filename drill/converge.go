package drill

import (
	"time"

	"github.com/convergo/convergo/drill/check"
)

// Waits measures how long each disturbed effect took: see Convergence. kills are the moments of the SIGKILLs, faults the
// journal of handlers that were made to fail.
func Waits(deliveries []check.Delivery, returned []time.Duration, kills []time.Time, faults []Fault) []time.Duration {
	type at struct{ consumer, key string }
	last := map[at]time.Time{}
	for _, f := range faults {
		if k := (at{f.Consumer, f.Key}); f.Key != "" && f.At.After(last[k]) {
			last[k] = f.At
		}
	}
	waits := append([]time.Duration(nil), returned...)
	for _, d := range deliveries {
		fault := last[at{d.Consumer, d.Key}]
		for _, kill := range kills {
			// Only a kill between the moment at which the event was due and its application disturbed it.
			if kill.After(d.Due) && kill.Before(d.Applied) && kill.After(fault) {
				fault = kill
			}
		}
		if !fault.IsZero() && fault.Before(d.Applied) {
			waits = append(waits, d.Applied.Sub(fault))
		}
	}
	return waits
}
