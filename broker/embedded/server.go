package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/convergo/convergo"
)

// maxMessage fits the largest event: payload, its own headers, the headers of its fields and the protocol's separators.
const maxMessage = convergo.MaxPayloadBytes + 4*convergo.MaxHeaderBytes

func start(ctx context.Context, cfg Config) (*server.Server, error) {
	srv, err := server.NewServer(&server.Options{
		ServerName: cfg.Name, DontListen: true, NoSigs: true, NoLog: true, NoSystemAccount: false,
		JetStream: true, StoreDir: cfg.Dir, SyncInterval: cfg.SyncInterval, SyncAlways: cfg.SyncAlways,
		DisableJetStreamBanner: true, MaxPayload: maxMessage, MaxPending: 256 << 20,
	})
	if err != nil {
		return nil, fmt.Errorf("embedded broker in %s: %w", cfg.Dir, err)
	}
	log := &serverLog{log: cfg.Log}
	srv.SetLoggerV2(log, false, false, false)
	started := make(chan struct{})
	go func() { defer close(started); srv.Start() }()
	select {
	case <-started:
	case <-ctx.Done():
		// Start goes on recovering the folder; Shutdown waits for nothing that it holds.
		srv.Shutdown()
		return nil, fmt.Errorf("embedded broker in %s: not started in time: %w", cfg.Dir, ctx.Err())
	}
	if reason := log.fatal(); reason != "" {
		srv.Shutdown()
		return nil, fmt.Errorf("embedded broker in %s does not start: %s", cfg.Dir, reason)
	}
	if !srv.ReadyForConnections(time.Until(deadline(ctx))) || !srv.JetStreamEnabled() {
		srv.Shutdown()
		return nil, fmt.Errorf("embedded broker in %s does not start: its store is not ready", cfg.Dir)
	}
	return srv, nil
}

func deadline(ctx context.Context) time.Time {
	at, ok := ctx.Deadline()
	if !ok {
		return time.Now().Add(time.Minute)
	}
	return at
}

// serverLog hands the server's lines to slog and keeps the reason why it gave up.
type serverLog struct {
	log *slog.Logger

	mu     sync.Mutex
	reason string
}

func (l *serverLog) fatal() string { l.mu.Lock(); defer l.mu.Unlock(); return l.reason }

func (l *serverLog) Fatalf(format string, v ...any) {
	l.mu.Lock()
	l.reason = strings.TrimSpace(fmt.Sprintf(format, v...))
	l.mu.Unlock()
	l.line(slog.LevelWarn, format, v)
}
func (l *serverLog) Errorf(format string, v ...any)  { l.line(slog.LevelWarn, format, v) }
func (l *serverLog) Warnf(format string, v ...any)   { l.line(slog.LevelWarn, format, v) }
func (l *serverLog) Noticef(format string, v ...any) { l.line(slog.LevelDebug, format, v) }
func (l *serverLog) Debugf(format string, v ...any)  { l.line(slog.LevelDebug, format, v) }
func (l *serverLog) Tracef(format string, v ...any)  { l.line(slog.LevelDebug, format, v) }

func (l *serverLog) line(level slog.Level, format string, v []any) {
	ctx := context.Background()
	if l.log.Enabled(ctx, level) {
		l.log.Log(ctx, level, "embedded broker: "+strings.TrimSpace(fmt.Sprintf(format, v...)))
	}
}
