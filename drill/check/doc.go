// Package check tells whether a platform converged, from the raw tables alone: its own SQL, none of the engine's code.
package check

import (
	"fmt"
	"strings"
)

// Equation is a law of conservation and what the tables say about it.
type Equation struct {
	Name    string `json:"name"`
	Checked int    `json:"checked"` // rows or groups looked at
	Broken  int    `json:"broken"`
	Detail  string `json:"detail"` // the first few that are broken, or what was looked at
}

// Table shows equations to people, tab-separated columns; what is broken is told below, one line each.
func Table(equations []Equation) string {
	var b strings.Builder
	b.WriteString("Equation\tchecked\tbroken\t\n")
	for _, e := range equations {
		mark := "ok"
		if e.Broken > 0 {
			mark = "BROKEN"
		}
		fmt.Fprintf(&b, "%s\t%d\t%d\t%s\n", e.Name, e.Checked, e.Broken, mark)
	}
	for _, e := range equations {
		if e.Broken > 0 {
			fmt.Fprintf(&b, "\n%s:\n", e.Name)
			for _, detail := range strings.Split(e.Detail, "; ") {
				fmt.Fprintf(&b, "  %s\n", detail)
			}
		}
	}
	return b.String()
}
