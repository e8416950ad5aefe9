package postgres_test

import (
	"testing"

	"github.com/convergo/convergo/store/postgres"
	"github.com/convergo/convergo/store/storetest"
)

func TestARowWhoseHeadersCannotBeSentAsTheyAreIsBuried(t *testing.T) {
	server := shared(t)
	storetest.BuryUnreadableHeaders(t, openOn(t, server.DSN("postgres"), postgres.Options{Schema: server.Name("headers")}), nil)
}
