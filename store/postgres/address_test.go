package postgres_test

import (
	"strings"
	"testing"

	"github.com/convergo/convergo/store/postgres"
)

func TestTheEndOfAPasswordIsNotShownAsTheHost(t *testing.T) {
	for _, dsn := range []string{
		"postgres://app:begin@hidden@127.0.0.1:1/shop", "postgres://app:begin@hidden@127.0.0.1:1,127.0.0.1:2/shop", "host=app:hidden@127.0.0.1 port=1",
	} {
		_, err := postgres.Open(t.Context(), dsn, postgres.Options{})
		if err == nil || strings.Contains(err.Error(), "hidden") || !strings.Contains(err.Error(), "%40") {
			t.Errorf("%s: %v", dsn, err)
		}
	}
}
