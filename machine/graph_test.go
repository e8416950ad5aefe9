package machine_test

import (
	"strings"
	"testing"

	"github.com/convergo/convergo/machine"
)

func TestReachesFollowsTheMoves(t *testing.T) {
	for _, c := range []struct {
		from, to machine.State
		want     bool
	}{
		{"CREATED", "CREATED", true},
		{"CREATED", "REFUNDED", true},
		{"PAID", "COMPLETED", true},
		{"PAID", "CREATED", false},
		{"CANCELED", "PAID", false},
		{"PAID", "CANCELED", false},
		{"NOWHERE", "PAID", false},
	} {
		if got := order.Reaches(c.from, c.to); got != c.want {
			t.Errorf("%s reaches %s: %v", c.from, c.to, got)
		}
	}
}

func TestValidateFindsMistakes(t *testing.T) {
	for _, m := range []machine.Machine{order, door, attempt} {
		if err := m.Validate(); err != nil {
			t.Errorf("%s: %v", m.Name, err)
		}
	}
	for want, spoil := range map[string]func(m *machine.Machine){
		"has no name":                    func(m *machine.Machine) { m.Name = "" },
		"Table \"orders; drop\"":         func(m *machine.Machine) { m.Table = "orders; drop" },
		"Version \"\"":                   func(m *machine.Machine) { m.Version = "" },
		"has no moves":                   func(m *machine.Machine) { m.Moves = nil },
		"two moves are called \"pay\"":   func(m *machine.Machine) { m.Moves[1].Name = "pay" },
		"unknown state \"PIAD\"":         func(m *machine.Machine) { m.Moves[2].From = []machine.State{"PIAD"} },
		"move \"pay\" lacks a state":     func(m *machine.Machine) { m.Moves[0].To = "" },
		"move \"ship\" lacks a state":    func(m *machine.Machine) { m.Moves[2].From = nil },
		"move \"ship\" names PAID twice": func(m *machine.Machine) { m.Moves[2].From = []machine.State{"PAID", "PAID"} },
	} {
		m := order
		m.Moves = append([]machine.Move(nil), order.Moves...)
		spoil(&m)
		if err := m.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
	quoted := order
	quoted.Table = `"order"`
	if err := quoted.Validate(); err != nil {
		t.Errorf("a quoted table name: %v", err)
	}
}
