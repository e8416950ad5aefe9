package inbox

import (
	"slices"
	"time"

	"github.com/convergo/convergo"
)

// troubles is what has been said of each thing that is tried again while it fails.
type troubles struct{ source, store, queues, types, beginnings, queueNotes, returns convergo.FailureLog }

// fails tells the log of something that is tried again until it works, but not of each try.
func (c *Consumer[TX]) fails(l *convergo.FailureLog, message string, err error, args ...any) {
	if failures, within, worth := l.Failed(c.cfg.Now()); worth {
		c.cfg.Log.Warn(message, slices.Concat([]any{"consumer", c.cfg.Consumer}, args,
			[]any{"failures", failures, "for", within.Round(time.Millisecond), "error", err})...)
	}
}

// works ends what fails has told of.
func (c *Consumer[TX]) works(l *convergo.FailureLog) {
	if failures, within, worth := l.Worked(c.cfg.Now()); worth {
		c.cfg.Log.Info("consumer goes on", "consumer", c.cfg.Consumer, "cause", c.troubles.cause(l), "failures", failures,
			"after", within.Round(time.Millisecond))
	}
}

// cause names a trouble in the log: at its begin and at its end.
func (t *troubles) cause(l *convergo.FailureLog) string {
	return map[*convergo.FailureLog]string{
		&t.source: "the source cannot be read", &t.store: "the store cannot be written", &t.queues: "queues cannot be worked off",
		&t.types: "the types that it handles cannot be registered", &t.beginnings: "the beginning of work is not noted",
		&t.queueNotes: "the beginning of work at a queue is not noted", &t.returns: "messages cannot be returned",
	}[l]
}
