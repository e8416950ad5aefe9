package machine

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Reaches tells whether an entity in state from can come to be in state to by the machine's moves. Every state reaches
// itself.
func (m Machine) Reaches(from, to State) bool {
	seen := []State{from}
	for i := 0; i < len(seen); i++ { // seen grows while it is walked
		if seen[i] == to {
			return true
		}
		for _, move := range m.Moves {
			if slices.Contains(move.From, seen[i]) && !slices.Contains(seen, move.To) {
				seen = append(seen, move.To)
			}
		}
	}
	return false
}

// States lists every state that the machine names: the initial ones first, then in the order of the moves.
func (m Machine) States() []State {
	var states []State
	add := func(more ...State) {
		for _, s := range more {
			if !slices.Contains(states, s) {
				states = append(states, s)
			}
		}
	}
	add(m.initial()...)
	for _, move := range m.Moves {
		add(move.From...)
		add(move.To)
	}
	return states
}

func (m Machine) initial() []State {
	if len(m.Initial) == 0 && len(m.Moves) > 0 {
		return m.Moves[0].From[:min(1, len(m.Moves[0].From))]
	}
	return m.Initial
}

// column names as they may be written into SQL: a plain or qualified or double-quoted identifier.
var identifier = regexp.MustCompile(`^("[A-Za-z0-9_]+"|[A-Za-z_][A-Za-z0-9_]*)(\.("[A-Za-z0-9_]+"|[A-Za-z_][A-Za-z0-9_]*))?$`)

// Validate finds mistakes in the definition: missing names, names that cannot stand in SQL, two moves of one name, empty
// or doubled states, and unknown states, which are those that an entity can never come to be in (a misspelt From, for
// example). Call it in a test. All mistakes are in the error.
func (m Machine) Validate() error {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("machine %s: "+format, append([]any{m.Name}, args...)...))
	}
	if m.Name == "" {
		wrong("has no name")
	}
	for field, name := range map[string]string{"Table": m.Table, "ID": m.ID, "State": m.State, "Version": m.Version} {
		if !identifier.MatchString(name) {
			wrong("%s %q is not an SQL identifier", field, name)
		}
	}
	if len(m.Moves) == 0 {
		wrong("has no moves")
	}
	names := map[string]bool{}
	for _, move := range m.Moves {
		if move.Name == "" {
			wrong("a move to %s has no name", move.To)
		}
		if names[move.Name] {
			wrong("two moves are called %q", move.Name)
		}
		names[move.Name] = true
		if move.To == "" || slices.Contains(move.From, "") || len(move.From) == 0 {
			wrong("move %q lacks a state", move.Name)
		}
		for i, from := range move.From {
			if slices.Contains(move.From[:i], from) {
				wrong("move %q names %s twice", move.Name, from)
			}
		}
	}
	for _, state := range m.States() {
		if !slices.ContainsFunc(m.initial(), func(begin State) bool { return m.Reaches(begin, state) }) {
			wrong("unknown state %q: nothing leads to it and it is not in Initial", state)
		}
	}
	return errors.Join(errs...)
}

// Mermaid draws the machine as a Mermaid state diagram, for the documentation.
func (m Machine) Mermaid() string {
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n")
	for _, state := range m.initial() {
		fmt.Fprintf(&b, "    [*] --> %s\n", state)
	}
	for _, move := range m.Moves {
		for _, from := range move.From {
			fmt.Fprintf(&b, "    %s --> %s: %s\n", from, move.To, move.Name)
		}
	}
	for _, state := range m.States() {
		if !slices.ContainsFunc(m.Moves, func(v Move) bool { return slices.Contains(v.From, state) }) {
			fmt.Fprintf(&b, "    %s --> [*]\n", state)
		}
	}
	return b.String()
}
