package convergo_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
)

func TestATimeInAnotherUnitIsRefusedAndCanStillBeTold(t *testing.T) {
	const nanoseconds = 1_764_000_000_000_000_000
	good := convergo.Event{
		Key: "k", MessageID: "m", Type: "T", Topic: "t", Aggregate: convergo.Aggregate{Type: "order", ID: "1"},
	}
	for _, us := range []int64{nanoseconds, math.MaxInt64, math.MinInt64, -nanoseconds} {
		for _, field := range []string{"created_at", "deliver_at"} {
			e := good
			if at := convergo.FromMicros(us); field == "created_at" {
				e.CreatedAt = at
			} else {
				e.DeliverAt = at
			}
			err := e.Validate()
			if !errors.Is(err, convergo.ErrInvalid) || !strings.Contains(err.Error(), field+" ") ||
				strings.Contains(err.Error(), "nanoseconds") != (us > 0) {
				t.Errorf("%s %d: %v", field, us, err)
			}
			if _, err := json.Marshal(convergo.Telling(convergo.FromMicros(us))); err != nil {
				t.Errorf("%d cannot be told: %v", us, err)
			}
		}
	}
	for _, at := range []time.Time{{}, time.Unix(0, 0), time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)} {
		good.CreatedAt = at
		if err := good.Validate(); err != nil || !convergo.Telling(at).Equal(at) {
			t.Errorf("%v: %v", at, err)
		}
	}
}
