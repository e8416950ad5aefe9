package simulate

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/convergo/convergo"
)

// Faults is how unreliable the world is. The zero value is a perfect world. Shares are per mille: 50 is one in twenty, 1000
// is always.
type Faults struct {
	Seed uint64
	// Copies of each notice, all of which are delivered until acknowledged; default 1.
	Copies int
	// Delay: each copy is held back by a random part of it, which also shuffles notices and copies.
	Delay time.Duration
	// Forged is the share of deliveries before which somebody else sends a forged copy.
	Forged int
	// LostAnswers is the share of requests (channel, carrier, messenger) that are carried out and whose answer never arrives.
	LostAnswers int
	// Hang is how long a lost answer keeps the caller waiting before the connection breaks; default 0.
	Hang time.Duration
	// Errors is the share of requests that are answered 503, with nothing done.
	Errors int
	// Refusals is the share of refund numbers that the channel refuses for good. It depends on the number alone: the same
	// number is refused again, another one is another draw.
	Refusals int
}

// Names of the faults in Stats.
const (
	faultCopy       = "notice_copy"      // copies beyond the first
	faultForged     = "notice_forged"    // forged notices sent
	faultBelieved   = "forged_accepted"  // forged notices that were acknowledged: must stay 0
	faultLostAnswer = "answer_lost"      // done, but the caller is not told
	faultError      = "error_503"        // not done
	faultRefusal    = "refund_refused"   // definite refusals of a refund
	faultDeclined   = "payment_declined" // a buyer's card was declined
	faultAmount     = "wrong_amount"     // a buyer paid another amount
	faultCurrency   = "wrong_currency"   // in another currency
	faultMerchant   = "wrong_merchant"   // a notice about somebody else's account
	faultUnknown    = "unknown_order"    // a payment under a trade number that nobody issued
	faultForced     = "late_or_second"   // money taken although the trade was closed or paid
	faultDelayed    = "notice_held_back" // copies that wait before their first delivery
	faultUnacked    = "notice_not_acked" // deliveries that were not acknowledged
)

// dice are the seeded random decisions.
type dice struct {
	mu     sync.Mutex
	faults Faults
	random *rand.Rand
}

// SetFaults changes how unreliable the world is from now on; the seed stays. A drill ends its faults with the zero value
// and measures from there.
func (w *World) SetFaults(f Faults) {
	w.dice.mu.Lock()
	defer w.dice.mu.Unlock()
	f.Seed = w.dice.faults.Seed
	w.dice.faults = f
}

// current are the faults of this moment.
func (d *dice) current() Faults {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.faults
}

func newDice(f Faults) *dice {
	return &dice{faults: f, random: rand.New(rand.NewPCG(f.Seed, 0x636f6e766572676f))}
}

func (d *dice) roll(perMille int) bool {
	if perMille <= 0 {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.random.IntN(1000) < perMille
}

// within is a random part of most.
func (d *dice) within(most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Duration(d.random.Int64N(int64(most)))
}

// refuses decides by the number alone.
func (d *dice) refuses(number string) bool {
	f := d.current()
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(number), f.Seed))
	return int(binary.BigEndian.Uint64(sum[:8])%1000) < f.Refusals
}

// count adds to a fault's figure.
func (w *World) count(ctx context.Context, tx convergo.Tx, name string, n int64) error {
	if n == 0 {
		return nil
	}
	changed, err := w.exec(ctx, tx, "CountFault", n, name)
	if err != nil || changed == 1 {
		return err
	}
	if _, err := w.exec(ctx, tx, "InsertFault", name); err != nil {
		return err
	}
	_, err = w.exec(ctx, tx, "CountFault", n, name)
	return err
}

// countAlone counts a fault in a transaction of its own. That it may fail is of no importance to anybody but the report.
func (w *World) countAlone(ctx context.Context, name string) {
	err := w.db.Update(ctx, func(ctx context.Context, tx convergo.Tx) error { return w.count(ctx, tx, name, 1) })
	if err != nil {
		w.cfg.Log.Warn("simulated world: a fault was not counted", "fault", name, "error", err)
	}
}
