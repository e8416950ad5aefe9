package rocketmq

import (
	"strings"
	"testing"
)

func TestAnAddressThatHoldsAPasswordIsRefusedUnshown(t *testing.T) {
	for _, addr := range []string{"rocketmq://app:hidden@127.0.0.1:1", "app:hidden@127.0.0.1:1"} {
		_, err := Open(t.Context(), Config{NameServers: []string{"127.0.0.1:1", addr}})
		if err == nil || strings.Contains(err.Error(), "hidden") || !strings.Contains(err.Error(), "Config.NameServers") {
			t.Errorf("%s: %v", addr, err)
		}
	}
}
