package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/convergo/convergo/store/sqlite"
	"github.com/convergo/convergo/trade/simulate"
)

// outsideWorld is the simulated payment channel, carrier and messenger with their own database.
type outsideWorld struct {
	*simulate.World
	db *sqlite.Store
}

// openWorld opens the database at path and makes the world on it. shop is the base URL that gets the channel's notices.
func openWorld(ctx context.Context, path string, s secrets, shop string, faults simulate.Faults, transit time.Duration, log *slog.Logger) (
	_ *outsideWorld, err error,
) {
	secret, err := channelSecret(s)
	if err != nil {
		return nil, err
	}
	db, err := openDatabase(ctx, path, sqlite.Options{Name: "world", Log: log})
	if err != nil {
		return nil, err
	}
	w := &outsideWorld{db: db}
	if err = db.Migrate(ctx, "world", simulate.Migrations()); err == nil {
		w.World, err = simulate.New(db, simulate.Config{
			Merchant: merchant, Secrets: secret, Token: worldToken(s), NotifyURL: shop + "/payments/notify/" + channelName, Transit: transit, Faults: faults, Log: log,
		})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("simulated world: %w", err), db.Close())
	}
	return w, nil
}

func (w *outsideWorld) close() error { return w.db.Close() }
