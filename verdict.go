package convergo

import "errors"

// ErrContended is wrapped by the Unreachable error of a store's Update that the database has had begin again too often: others wanted the
// same rows each time. Unlike other outages it says that the database answers.
var ErrContended = errors.New("contended")

// Verdict answers the one question about an error: again, or a person? An error without a verdict means again.
type Verdict uint8

// The verdicts.
const (
	// Again: try later, with back-off; counts as an attempt.
	Again Verdict = iota
	// Park: no later attempt can succeed (bad payload, unknown order, too large). To the dead letters at once.
	Park
	// Outage: the other side cannot be reached at all. Says nothing about the message and spends no attempt.
	Outage
	// Wait: who should take this message cannot take any now, others can take theirs. To a relay it costs one attempt, however
	// long it lasts (see relay.Config.MaxWait); elsewhere it is Again.
	Wait
)

func (v Verdict) String() string { return [...]string{"again", "park", "outage", "wait"}[v] }

type judged struct {
	error
	verdict Verdict
}

func (j judged) Unwrap() error { return j.error }

// Permanent marks err as one that no later attempt can cure. Permanent(nil) is nil.
func Permanent(err error) error { return judge(err, Park) }

// Unreachable marks err as an outage of the other side. Unreachable(nil) is nil.
func Unreachable(err error) error { return judge(err, Outage) }

// Unavailable marks err as an outage of this message's receiver alone. Unavailable(nil) is nil.
func Unavailable(err error) error { return judge(err, Wait) }

func judge(err error, v Verdict) error {
	if err == nil {
		return nil
	}
	return judged{err, v}
}

// VerdictOf is the verdict of the outermost judged error in err's chain; Again when there is none.
func VerdictOf(err error) Verdict {
	var j judged
	if errors.As(err, &j) {
		return j.verdict
	}
	return Again
}
