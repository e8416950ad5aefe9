package postgres_test

import (
	"testing"

	"github.com/convergo/convergo/store/postgres"
	"github.com/convergo/convergo/store/storetest"
)

func TestTheLanesOfARelayThatStopsOrDiesAreTakenOver(t *testing.T) {
	s := open(t, postgres.Options{Notify: -1})
	number := func(query string) int64 { return one[int64](t, s, query) }
	storetest.TakeOver(t, s, number, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
}
