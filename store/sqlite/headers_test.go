package sqlite_test

import (
	"testing"

	"github.com/convergo/convergo/store/sqlite"
	"github.com/convergo/convergo/store/storetest"
)

// SQLite takes any bytes as a text.
func TestARowWhoseHeadersCannotBeSentAsTheyAreIsBuried(t *testing.T) {
	storetest.BuryUnreadableHeaders(t, open(t, sqlite.Options{}), map[string]string{
		"{\"a\":\"\xff\"}": "bytes that are not UTF-8", "{\"\xe2\x82\":\"a\"}": "bytes that are not UTF-8",
	})
}
