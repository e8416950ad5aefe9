package simulate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/georgysavva/scany/v2/sqlscan"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade/channel"
)

type noticeRow struct {
	ID       string `db:"notice_id"`
	Copy     int64  `db:"copy_no"`
	TradeNo  string `db:"trade_no"`
	Body     string `db:"body"`
	Attempts int64  `db:"attempts"`
}

// delivered is what became of one delivery.
type delivered struct {
	notice         noticeRow
	acked          bool
	answer         string
	forged, failed int64 // forged copies sent beside it, and those of them that were acknowledged
}

// Run delivers notices until ctx ends, and finishes the ones in flight.
func (w *World) Run(ctx context.Context) error {
	defer w.quiet.CloseIdleConnections()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		case <-timer.C:
		}
		wait := w.cfg.Poll
		for {
			n, next, err := w.Deliver(ctx)
			if err != nil && ctx.Err() == nil {
				w.cfg.Log.Error("simulated channel: delivery of notices", "error", err)
			}
			if n > 0 && err == nil && ctx.Err() == nil {
				continue
			}
			if until := next.Sub(w.cfg.Now()); err == nil && !next.IsZero() {
				wait = min(max(until, time.Millisecond), wait)
			}
			break
		}
		timer.Reset(wait)
	}
}

// hint tells Run that there is something to deliver.
func (w *World) hint() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Deliver makes one delivery attempt for up to 64 due notices and records the outcome. It returns how many it attempted and,
// when that was none, when the next one is due (zero: none is pending).
func (w *World) Deliver(ctx context.Context) (n int, next time.Time, err error) {
	now := w.cfg.Now()
	var due []noticeRow
	err = w.db.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
		if err := sqlscan.Select(ctx, tx, &due, w.sql.Get("DueNotices"), convergo.Micros(now)); err != nil {
			return err
		}
		if len(due) > 0 {
			return nil
		}
		var at int64
		err := tx.QueryRowContext(ctx, w.sql.Get("NextNotice")).Scan(&at)
		next = convergo.FromMicros(at)
		return err
	})
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("simulated channel: read due notices: %w", err)
	}
	if len(due) == 0 {
		return 0, next, nil
	}
	outcomes := w.deliverAll(ctx, due)
	// What was delivered was delivered: it is recorded even when ctx has ended meanwhile.
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.Timeout)
	defer cancel()
	err = w.db.Update(record, func(ctx context.Context, tx convergo.Tx) error { return w.recordDeliveries(ctx, tx, outcomes) })
	return len(due), time.Time{}, err
}

func (w *World) deliverAll(ctx context.Context, due []noticeRow) []delivered {
	outcomes := make([]delivered, len(due))
	turns := make(chan int)
	var workers sync.WaitGroup
	for range min(w.cfg.Workers, len(due)) {
		workers.Go(func() {
			for i := range turns {
				outcomes[i] = w.deliver(ctx, due[i])
			}
		})
	}
	for i := range due {
		turns <- i
	}
	close(turns)
	workers.Wait()
	return outcomes
}

func (w *World) deliver(ctx context.Context, n noticeRow) delivered {
	d := delivered{notice: n}
	if w.dice.roll(w.dice.current().Forged) {
		d.forged = 1
		if status, err := w.post(ctx, newID("msg_"), forgedBody(n.Body), channel.NewSecret()); err == nil && status/100 == 2 {
			d.failed = 1
			w.cfg.Log.Error("simulated channel: a forged notice was acknowledged", "trade_no", n.TradeNo)
		}
	}
	status, err := w.post(ctx, n.ID, []byte(n.Body), w.cfg.Secrets...)
	switch {
	case err != nil:
		d.answer = clip(err.Error())
	default:
		d.acked, d.answer = status/100 == 2, http.StatusText(status)
	}
	return d
}

// post sends one signed notice; each attempt has a new timestamp and so a new signature.
func (w *World) post(ctx context.Context, id string, body []byte, secrets ...channel.Secret) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.cfg.NotifyURL, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	if err := channel.SetSignature(request.Header, id, w.cfg.Now(), body, secrets...); err != nil {
		return 0, err
	}
	response, err := w.quiet.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxBody)) // so that the connection can be used again
	return response.StatusCode, nil
}

// forgedBody is the notice with other money in it.
func forgedBody(body string) []byte {
	var n channel.Notice
	if json.Unmarshal([]byte(body), &n) != nil {
		return []byte(body)
	}
	n.Transaction, n.Amount = newID("TX"), n.Amount+1
	forged, _ := json.Marshal(n) // a Notice always marshals
	return forged
}

func (w *World) recordDeliveries(ctx context.Context, tx convergo.Tx, outcomes []delivered) error {
	now := w.cfg.Now()
	var forged, believed, unacked int64
	for _, d := range outcomes {
		forged += d.forged
		believed += d.failed
		statement, at := "AckNotice", now
		if !d.acked {
			unacked++
			statement, at = "RetryNotice", now.Add(w.cfg.Backoff.Delay(int(d.notice.Attempts)+1))
		}
		if _, err := w.exec(ctx, tx, statement, convergo.Micros(at), d.answer, d.notice.ID, d.notice.Copy); err != nil {
			return err
		}
	}
	for name, n := range map[string]int64{faultForged: forged, faultBelieved: believed, faultUnacked: unacked} {
		if err := w.count(ctx, tx, name, n); err != nil {
			return err
		}
	}
	return nil
}

func clip(s string) string {
	const most = 200
	return s[:min(len(s), most)]
}
