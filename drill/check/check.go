package check

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

//go:embed equations.sql
var equationsSQL string

//go:embed views.sql
var viewsSQL string

// Services whose databases a whole platform has, each in DIR/{name}.db.
func Services() []string {
	return []string{"order", "payment", "inventory", "coupon", "points", "shipping", "ledger", "notification", "risk"}
}

// Subscriptions: which service must have applied which events. It is written down here once more, and not asked of the
// services, because a service that forgot a subscription must not look converged. A test compares both.
func Subscriptions() map[string][]string {
	return map[string][]string{
		"order": {"CouponLocked", "CouponRejected", "OrderTimeout", "PaymentClosed", "PaymentRefundFailed", "PaymentRefunded", "PaymentSucceeded",
			"PointsLocked", "PointsRejected", "RiskApproved", "RiskRejected", "ShipmentDelivered", "ShipmentDispatched", "StockHeld", "StockRejected"},
		"payment":      {"OrderClosing", "OrderPayable", "RefundApproved"},
		"inventory":    {"OrderCanceled", "OrderCreated", "OrderPaid", "OrderRefunded"},
		"coupon":       {"OrderCanceled", "OrderCreated", "OrderPaid", "OrderRefunded"},
		"points":       {"OrderCanceled", "OrderCreated", "OrderPaid", "OrderRefunded"},
		"shipping":     {"OrderPaid", "OrderRefunded"},
		"ledger":       {"OrderPaid", "OrderRefunded", "PaymentRefunded", "PointsGranted", "PointsReversed", "ReceiptRecorded", "ReceiptRefunded"},
		"notification": {"OrderCanceled", "OrderPaid", "OrderRefunded", "OrderShipped"},
		"risk":         {"OrderCreated"},
	}
}

// Checker reads the databases of one data folder. It changes nothing: its connection allows queries only.
type Checker struct {
	db   *sql.DB
	conn *sql.Conn
	// Now is what overdue is measured against; default time.Now.
	Now func() time.Time
}

// worldSchema is the simulated outside world's database.
const worldSchema = "world"

// Open attaches the databases in dir. world is the database of the simulated outside; when empty it is dir/world.db.
func Open(ctx context.Context, dir, world string) (_ *Checker, err error) {
	db, err := sql.Open("sqlite", "file:check?mode=memory&_pragma=busy_timeout(10000)")
	if err != nil {
		return nil, err
	}
	c := &Checker{db: db, Now: time.Now}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if c.conn, err = db.Conn(ctx); err != nil {
		return nil, err
	}
	if world == "" {
		world = filepath.Join(dir, worldSchema+".db")
	}
	for _, name := range Services() {
		if err := c.attach(ctx, name, filepath.Join(dir, name+".db")); err != nil {
			return nil, err
		}
	}
	return c, c.attach(ctx, worldSchema, world)
}

func (c *Checker) attach(ctx context.Context, schema, path string) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("%s: %w; a whole platform has one file per service and the world's: %s.db, %s.db", path, err, strings.Join(Services(), ".db, "), worldSchema)
	}
	// Writable, because a WAL database cannot always be opened read-only; query_only keeps the promise.
	uri := url.URL{Scheme: "file", Opaque: url.PathEscape(path), RawQuery: "mode=rw"}
	if _, err := c.conn.ExecContext(ctx, "ATTACH DATABASE ? AS \""+schema+"\"", uri.String()); err != nil {
		return fmt.Errorf("attach %s: %w", path, err)
	}
	var tables int
	if err := c.conn.QueryRowContext(ctx, "SELECT COUNT(*) FROM \""+schema+"\".sqlite_master").Scan(&tables); err != nil {
		return fmt.Errorf("%s is not a database of convergo: %w", path, err)
	}
	if tables == 0 {
		return fmt.Errorf("%s has no tables: the platform was never started on this folder", path)
	}
	return nil
}

// Close gives the databases back.
func (c *Checker) Close() error {
	var errs []error
	if c.conn != nil {
		errs = append(errs, c.conn.Close())
	}
	return errors.Join(append(errs, c.db.Close())...)
}

// Run checks every equation in one snapshot of each database and returns them in the order of equations.sql.
func (c *Checker) Run(ctx context.Context) (_ []Equation, err error) {
	tx, err := c.conn.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, tx.Rollback()) }()
	horizon, err := prepare(ctx, tx)
	if err != nil {
		return nil, err
	}
	args := []any{sql.Named("now", c.Now().UnixMicro()), sql.Named("horizon", horizon)}
	statements, names := parse(equationsSQL)
	var equations []Equation
	for _, name := range names {
		title, isBroken := strings.CutSuffix(name, ".broken")
		if !isBroken {
			continue
		}
		e, err := equation(ctx, tx, title, statements, args)
		if err != nil {
			return nil, fmt.Errorf("equation %q: %w", title, err)
		}
		equations = append(equations, e)
	}
	chain, err := ledgerChain(ctx, tx)
	if err != nil {
		return nil, fmt.Errorf("equation %q: %w", chain.Name, err)
	}
	return append(equations, chain), nil
}

// Settled runs until a run finds nothing, or until a break was found by every run for as long as settle: on a platform
// that is running, what is merely on its way breaks equations for a moment.
func (c *Checker) Settled(ctx context.Context, settle time.Duration) ([]Equation, error) {
	deadline := c.Now().Add(settle)
	for {
		equations, err := c.Run(ctx)
		if err != nil {
			return nil, err
		}
		broken := slices.ContainsFunc(equations, func(e Equation) bool { return e.Broken > 0 })
		if !broken || !c.Now().Before(deadline) {
			return equations, nil
		}
		select {
		case <-ctx.Done():
			return equations, ctx.Err()
		case <-time.After(min(settle, 250*time.Millisecond)):
		}
	}
}

// prepare makes the views over all services. horizon is the time before which rows may refer to events and requests
// that retention has deleted; 0 when nothing was deleted yet.
func prepare(ctx context.Context, tx *sql.Tx) (horizon int64, err error) {
	statements, names := parse(viewsSQL)
	for _, name := range names {
		if _, err := tx.ExecContext(ctx, statements[name]); err != nil {
			return 0, fmt.Errorf("view %s: %w", name, err)
		}
	}
	for consumer, types := range Subscriptions() {
		for _, eventType := range types {
			if _, err := tx.ExecContext(ctx, "INSERT INTO subscription (consumer, type) VALUES (?, ?)", consumer, eventType); err != nil {
				return 0, err
			}
		}
	}
	const day = 24 * 60 * 60 * 1_000_000
	for _, name := range Services() {
		for _, table := range []string{"outbox_event", "idempotency_record"} {
			var first, created sql.NullInt64
			err := tx.QueryRowContext(ctx, `SELECT MIN(id), MIN(created_at) FROM "`+name+`".`+table).Scan(&first, &created)
			if err != nil {
				return 0, err
			}
			if first.Int64 > 1 {
				horizon = max(horizon, created.Int64+day)
			}
		}
	}
	return horizon, nil
}

const shown = 5 // broken rows in an equation's detail

func equation(ctx context.Context, tx *sql.Tx, title string, statements map[string]string, args []any) (Equation, error) {
	e := Equation{Name: title}
	checked, ok := statements[title+".checked"]
	if !ok {
		return e, errors.New("has no .checked statement")
	}
	if err := tx.QueryRowContext(ctx, checked).Scan(&e.Checked); err != nil {
		return e, fmt.Errorf("count: %w", err)
	}
	query := statements[title+".broken"]
	used := slices.DeleteFunc(slices.Clone(args), func(a any) bool { return !strings.Contains(query, ":"+a.(sql.NamedArg).Name) })
	rows, err := tx.QueryContext(ctx, query, used...)
	if err != nil {
		return e, err
	}
	var details []string
	for rows.Next() {
		var key, detail sql.NullString
		if err := rows.Scan(&key, &detail); err != nil {
			return e, errors.Join(err, rows.Close())
		}
		e.Broken++
		if len(details) < shown {
			details = append(details, key.String+": "+detail.String)
		}
	}
	if e.Broken > shown {
		details = append(details, fmt.Sprintf("and %d more", e.Broken-shown))
	}
	e.Detail = strings.Join(details, "; ")
	return e, errors.Join(rows.Err(), rows.Close())
}

// parse reads "-- name: …" statements and repeats what stands in /*union:…*/ for every service.
func parse(text string) (statements map[string]string, names []string) {
	statements = map[string]string{}
	for _, part := range strings.Split("\n"+text, "\n-- name: ")[1:] {
		name, body, _ := strings.Cut(part, "\n")
		names = append(names, name)
		statements[name] = unions(strings.TrimSpace(body))
	}
	return statements, names
}

func unions(body string) string {
	for {
		before, rest, found := strings.Cut(body, "/*union:")
		if !found {
			return body
		}
		inner, after, _ := strings.Cut(rest, "*/")
		parts := make([]string, 0, len(Services()))
		for _, name := range Services() {
			one := strings.ReplaceAll(inner, "'SCHEMA'", "'"+name+"'")
			parts = append(parts, strings.ReplaceAll(one, "SCHEMA", `"`+name+`"`))
		}
		body = before + strings.Join(parts, " UNION ALL ") + after
	}
}
