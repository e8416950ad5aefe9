package mysql_test

import (
	"context"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/store/storetest"
	"github.com/convergo/convergo/testserver"
)

func TestTheLanesOfARelayThatStopsOrDiesAreTakenOver(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		s := open(t, fresh(t, server), mysql.Options{})
		storetest.TakeOver(t, s, func(query string) (n int64) {
			must(t, s.View(t.Context(), func(ctx context.Context, tx convergo.Tx) error { return tx.QueryRowContext(ctx, query).Scan(&n) }))
			return n
		}, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")
	})
}
