package stored

import (
	"log/slog"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/ops"
)

// ActRow is an act as the statement RecordAct of each store takes it: target, id, move, the states before and after it, reason, key, who,
// when.
func ActRow(a ops.Act) []any {
	a = a.Cut()
	from, to := a.States()
	return []any{string(a.Target), a.ID, string(a.Move), from, to, a.Reason, string(a.Key), a.By, convergo.Micros(a.At)}
}

// ScanAct reads a row of the statement Acts: number, target, id, move, reason, key, who, when.
func ScanAct(scan func(columns ...any) error) (a ops.Act, err error) {
	var at int64
	err = scan(&a.Seq, &a.Target, &a.ID, &a.Move, &a.Reason, &a.Key, &a.By, &at)
	a.At = convergo.FromMicros(at)
	return a, err
}

// LogAct tells of an act that is committed.
func LogAct(log *slog.Logger, store string, a ops.Act) {
	log.Info("a person acted", append([]any{"store", store}, a.Cut().Attrs()...)...)
}
