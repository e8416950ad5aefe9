package convergo

import (
	"errors"
	"fmt"
	"testing"
)

func TestAnErrorWithoutAVerdictMeansAgain(t *testing.T) {
	plain := errors.New("plain")
	for _, c := range []struct {
		name string
		err  error
		want Verdict
	}{
		{"nil", nil, Again},
		{"plain", plain, Again},
		{"permanent", Permanent(plain), Park},
		{"unreachable", Unreachable(plain), Outage},
		{"wrapped", fmt.Errorf("publish: %w", Permanent(plain)), Park},
		{"joined", errors.Join(plain, Unreachable(plain)), Outage},
		{"the outermost wins", Permanent(fmt.Errorf("gave up: %w", Unreachable(plain))), Park},
	} {
		if got := VerdictOf(c.err); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestAVerdictKeepsItsError(t *testing.T) {
	plain := errors.New("plain")
	for _, err := range []error{Permanent(plain), Unreachable(plain)} {
		if !errors.Is(err, plain) || err.Error() != "plain" {
			t.Errorf("%v hides the error that it judges", err)
		}
	}
	if Permanent(nil) != nil || Unreachable(nil) != nil {
		t.Error("a verdict about no error is an error")
	}
	if got := fmt.Sprint(Again, Park, Outage); got != "again park outage" {
		t.Errorf("the verdicts read %q", got)
	}
}
