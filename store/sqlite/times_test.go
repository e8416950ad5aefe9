package sqlite_test

import (
	"testing"

	"github.com/convergo/convergo/store/sqlite"
	"github.com/convergo/convergo/store/storetest"
)

func TestTimesInAnotherUnitAreFoundWithTheirUnit(t *testing.T) {
	storetest.TellOddTimes(t, open(t, sqlite.Options{}))
}
