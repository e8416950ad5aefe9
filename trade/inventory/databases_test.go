package inventory_test

import (
	"os"
	"testing"

	"github.com/convergo/convergo/trade/tradetest"
)

var databases tradetest.Databases

func TestMain(m *testing.M) { os.Exit(databases.Run(m)) }
