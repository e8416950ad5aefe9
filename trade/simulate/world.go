// Package simulate is the world outside the platform: a payment channel, a carrier and a messenger, with the habits that
// make real ones difficult. They keep their own state in their own database, so that a platform that is killed and started
// again meets the same world. They are faithful where it matters (signatures, close against pay, refunds by key, notices
// until acknowledged) and unreliable where they are told to be (Faults).
package simulate

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"time"

	"github.com/georgysavva/scany/v2/sqlscan"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/sqltext"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/channel"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

//go:embed queries.sql
var queryFile embed.FS

// Migrations are the goose migrations of the world's tables; the caller applies them before New.
func Migrations() fs.FS {
	sub, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return sub
}

// Config of a World. Merchant, Secret and NotifyURL are required.
type Config struct {
	Merchant  string           // the shop's account at the channel
	Secrets   []channel.Secret // shared with the shop; all verify, all sign
	NotifyURL string           // where the channel sends its notices
	Token     string           // bearer token that the carrier and the messenger want; empty wants none
	HTTP      *http.Client     // that sends them; default one that keeps a connection for each worker
	// Timeout of one delivery of a notice; default 5 s.
	Timeout time.Duration
	// Backoff of notices that are not acknowledged; default 200 ms doubling up to 5 s.
	Backoff convergo.Backoff
	Workers int           // notices delivered at the same time; default 8
	Poll    time.Duration // safety net behind wake-ups; default 500 ms
	// Transit is how long a parcel travels; for its first tenth it is still BOOKED and can be canceled. Default 10 s.
	Transit time.Duration
	Faults  Faults
	Now     func() time.Time // default time.Now
	Log     *slog.Logger     // default: discarded
}

// World is the simulated outside. It is safe for concurrent use.
type World struct {
	db    trade.DB
	sql   sqltext.Set
	cfg   Config
	dice  *dice
	wake  chan struct{}
	quiet *http.Client
}

// New is a World on db, whose tables exist (Migrations).
func New(db trade.DB, cfg Config) (*World, error) {
	if cfg.Merchant == "" || len(cfg.Secrets) == 0 || cfg.NotifyURL == "" {
		return nil, errors.New("simulated world: Merchant, Secrets and NotifyURL must be set")
	}
	set, err := sqltext.Load(queryFile, "queries.sql", db.Dialect())
	if err != nil {
		return nil, fmt.Errorf("simulated world: %w", err)
	}
	cfg = withDefaults(cfg)
	client := http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: cfg.Workers, IdleConnTimeout: time.Minute}}
	if cfg.HTTP != nil {
		client = *cfg.HTTP
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // a redirect is no acknowledgement
	return &World{db: db, sql: set, cfg: cfg, dice: newDice(cfg.Faults), wake: make(chan struct{}, 1), quiet: &client}, nil
}

func withDefaults(cfg Config) Config {
	if cfg.Timeout <= 0 {
		cfg.Timeout = 5 * time.Second
	}
	if cfg.Backoff.Base <= 0 && len(cfg.Backoff.Schedule) == 0 {
		cfg.Backoff = convergo.Backoff{Base: 200 * time.Millisecond, Cap: 5 * time.Second}
	}
	if cfg.Workers <= 0 {
		cfg.Workers = 8
	}
	if cfg.Poll <= 0 {
		cfg.Poll = 500 * time.Millisecond
	}
	if cfg.Transit <= 0 {
		cfg.Transit = 10 * time.Second
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return cfg
}

// Handler serves /channel/…, /carrier/…, /messenger/… and GET /simulate/stats.
func (w *World) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /channel/pay", w.cashierPage)
	mux.HandleFunc("POST /channel/pay", w.plain(w.payLink))
	mux.HandleFunc("GET /channel/trades/{trade_no}", w.signed(w.findTrade))
	mux.HandleFunc("POST /channel/trades/{trade_no}/close", w.signed(w.closeTrade))
	mux.HandleFunc("POST /channel/refunds", w.signed(w.refund))
	mux.HandleFunc("GET /channel/refunds/{refund_no}", w.signed(w.findRefund))
	mux.HandleFunc("GET /channel/bill", w.signed(w.bill))
	mux.HandleFunc("POST /carrier/bookings", w.known(w.book))
	mux.HandleFunc("GET /carrier/bookings/{key}", w.known(w.findBooking))
	mux.HandleFunc("POST /carrier/bookings/{key}/cancel", w.known(w.cancelBooking))
	mux.HandleFunc("POST /messenger/messages", w.known(w.send))
	mux.HandleFunc("GET /messenger/messages/{key}", w.known(w.findMessage))
	mux.HandleFunc("GET /simulate/stats", w.plain(w.stats))
	return mux
}

// Stats are figures of the whole life of the world's database.
type Stats struct {
	Payments       int64            `json:"payments" db:"payments"`
	Refunds        int64            `json:"refunds" db:"refunds"`
	Bookings       int64            `json:"bookings" db:"bookings"`
	Messages       int64            `json:"messages" db:"messages"`
	Notices        int64            `json:"notices" db:"-"` // copies counted one by one
	NoticeAttempts int64            `json:"notice_attempts" db:"-"`
	NoticesPending int64            `json:"notices_pending" db:"-"`
	Faults         map[string]int64 `json:"faults" db:"-"` // by kind
}

// Stats reads the figures.
func (w *World) Stats(ctx context.Context) (Stats, error) {
	s := Stats{Faults: map[string]int64{}}
	err := w.db.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
		if err := sqlscan.Get(ctx, tx, &s, w.sql.Get("Totals")); err != nil {
			return err
		}
		row := tx.QueryRowContext(ctx, w.sql.Get("CountNotices"))
		if err := row.Scan(&s.Notices, &s.NoticeAttempts, &s.NoticesPending); err != nil {
			return err
		}
		var faults []struct {
			Name string `db:"name"`
			N    int64  `db:"n"`
		}
		if err := sqlscan.Select(ctx, tx, &faults, w.sql.Get("Faults")); err != nil {
			return err
		}
		for _, f := range faults {
			s.Faults[f.Name] = f.N
		}
		return nil
	})
	if err != nil {
		return Stats{}, fmt.Errorf("simulated world: read figures: %w", err)
	}
	return s, nil
}

func (w *World) stats(r *http.Request, _ []byte) (answer, error) {
	s, err := w.Stats(r.Context())
	return answer{http.StatusOK, s}, err
}

// exec runs a named statement and returns how many rows it changed.
func (w *World) exec(ctx context.Context, tx convergo.Tx, statement string, args ...any) (int64, error) {
	result, err := tx.ExecContext(ctx, w.sql.Get(statement), args...)
	if err != nil {
		return 0, fmt.Errorf("simulated world: %s: %w", statement, err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("simulated world: %s: %w", statement, err)
	}
	return n, nil
}

// find reads one row into dst; found is false when there is none.
func (w *World) find(ctx context.Context, tx convergo.Tx, dst any, statement string, args ...any) (found bool, err error) {
	err = sqlscan.Get(ctx, tx, dst, w.sql.Get(statement), args...)
	if sqlscan.NotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("simulated world: %s: %w", statement, err)
	}
	return true, nil
}
