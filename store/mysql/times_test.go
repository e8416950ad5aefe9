package mysql_test

import (
	"testing"

	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/store/storetest"
	"github.com/convergo/convergo/testserver"
)

func TestTimesInAnotherUnitAreFoundWithTheirUnit(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		storetest.TellOddTimes(t, open(t, fresh(t, server), mysql.Options{}))
	})
}
