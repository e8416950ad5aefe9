package payment

import (
	"testing"

	"github.com/convergo/convergo/machine"
)

func TestTheMachinesAreSound(t *testing.T) {
	for _, m := range []machine.Machine{Orders(), Intents(), Refunds()} {
		if err := m.Validate(); err != nil {
			t.Error(err)
		}
	}
}
