package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

const envPrefix = "CONVERGO_"

// warnOfEnvironment says which variables look like settings and are none: a mistyped name would otherwise be a default that nobody hears of.
func warnOfEnvironment(to io.Writer, parsed *kong.Context) {
	if command := parsed.Command(); strings.HasPrefix(command, "probe") || command == "version" { // asked every few seconds; takes no settings
		return
	}
	var known []string
	config := ""
	for _, f := range settingsOf(parsed.Model) {
		known = append(known, f.Envs...)
	}
	for _, f := range parsed.Flags() {
		if path, ok := parsed.FlagValue(f).(kong.ConfigFlag); ok {
			config = string(path)
		}
	}
	text, _ := os.ReadFile(config) // it was read before; without one nothing refers to a variable
	for _, name := range unknownVariables(os.Environ(), known, string(text)) {
		_, _ = fmt.Fprintf(to, "convergo: the environment has %s, which is no setting%s: it is not used\n", name, meant(name, known)) // only a warning
	}
}

// unknownVariables are the names that begin like settings and are neither settings nor taken by the configuration file with ${NAME}, nor
// those of other purposes: what Kubernetes sets for a Service of this name, secrets for the file of webhooks, and the project's tests.
func unknownVariables(environment, known []string, file string) (names []string) {
	other := regexp.MustCompile(`^CONVERGO_(PORT(_\d+_.*)?|(.*_)?SERVICE_(HOST|PORT.*)|.*_PORT(_\d+_.*)?|.*(PASSWORD|SECRET|TOKEN|KEY)|(.*_)?TEST(_.*)?|` +
		`BROKERTEST_.*|CRASH_(ROUNDS|KEEP)|LARGE_ROWS|SERVERS|ORDER_EVENTS|TRANSACTION)$`)
	for _, entry := range environment {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, envPrefix) && !slices.Contains(known, name) && !other.MatchString(name) && !strings.Contains(file, "${"+name+"}") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// meant is "(did you mean …?)" when one of the names is nearly the text, and nothing otherwise.
func meant(text string, names []string) string {
	best, least := "", 3
	for _, name := range names {
		if d := distance(text, name); d < least && d*3 <= len(text) {
			best, least = name, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

// distance is how many bytes have to be put in, taken out or changed to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			changed := diagonal
			if a[i] != b[j] {
				changed++
			}
			diagonal = row[j+1]
			row[j+1] = min(changed, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
