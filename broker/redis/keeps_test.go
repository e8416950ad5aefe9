package redis

import (
	"testing"
	"time"
)

func TestTheStreamsKeepEventsUntilTheNextTrimmingAfterTheirAge(t *testing.T) {
	cfg := shared(t)
	cfg.MaxAge, cfg.TrimEvery = 3*time.Hour, time.Hour
	all, err := open(t, cfg).Keeps(t.Context(), nil)
	if err != nil || len(all) != 1 || all[0].Age != 4*time.Hour || all[0].Setting == "" || all[0].Where == "" {
		t.Errorf("%+v, %v", all, err)
	}
	cfg.MaxAge = Forever
	if all, err = open(t, cfg).Keeps(t.Context(), nil); err != nil || len(all) != 1 || all[0].Age != 0 {
		t.Errorf("without limit: %+v, %v", all, err)
	}
}
