package redis

import (
	"strings"
	"testing"
)

func TestAnAddressThatHoldsAPasswordIsRefusedUnshown(t *testing.T) {
	for _, addr := range []string{"redis://app:hidden@127.0.0.1:1", "app:hidden@127.0.0.1:1"} {
		_, err := Open(t.Context(), Config{Addr: addr})
		if err == nil || strings.Contains(err.Error(), "hidden") || !strings.Contains(err.Error(), "Config.Addr") {
			t.Errorf("%s: %v", addr, err)
		}
	}
}
