package check

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

//go:embed *.sql
var texts embed.FS

// equationFiles in the order in which they are reported.
func equationFiles() []string { return []string{"money.sql", "goods.sql", "ledger.sql", "engine.sql"} }

// Services whose databases a whole platform has, each in DIR/{name}.db.
func Services() []string {
	return []string{"order", "payment", "inventory", "coupon", "points", "shipping", "ledger", "notification", "risk"}
}

// Subscriptions are which service must have applied which events. It is written down here once more, and not asked of the
// services, because a service that forgot a subscription must not look converged. A test compares both.
func Subscriptions() map[string][]string {
	return map[string][]string{
		"order": {"CouponLocked", "CouponRejected", "OrderTimeout", "PaymentClosed", "PaymentRefundFailed", "PaymentRefunded", "PaymentSucceeded",
			"PointsLocked", "PointsRejected", "RiskApproved", "RiskRejected", "ShipmentDelivered", "ShipmentDispatched", "StockHeld", "StockRejected"},
		"payment":      {"OrderClosing", "OrderPayable", "RefundApproved"},
		"inventory":    {"OrderCanceled", "OrderCreated", "OrderPaid", "OrderRefunded"},
		"coupon":       {"OrderCanceled", "OrderCreated", "OrderPaid", "OrderRefunded"},
		"points":       {"OrderCanceled", "OrderCreated", "OrderPaid", "OrderRefunded"},
		"shipping":     {"OrderPaid", "OrderRefunded", "RefundApproved"},
		"ledger":       {"OrderPaid", "OrderRefunded", "PaymentRefunded", "PointsGranted", "PointsReversed", "ReceiptRecorded", "ReceiptRefunded"},
		"notification": {"OrderCanceled", "OrderPaid", "OrderRefunded", "OrderShipped"},
		"risk":         {"OrderCreated"},
	}
}

// Checker reads the databases of one platform and changes nothing in them.
type Checker struct {
	db   *sql.DB
	conn *sql.Conn
	// Now is what overdue is measured against; default time.Now.
	Now func() time.Time
	// Details is how many broken rows the detail of an equation names at most; Open sets it to 5.
	Details int
	// Keep is how long retention keeps every row at least: the shortest of the program's --keep-sent, --keep-inbox and
	// --keep-requests. A younger row that is missing is damage. Open sets it to their shortest default, 7 days.
	Keep time.Duration

	sources []*original // databases on servers
	copies  string      // the folder of their copies; empty when there are none
}

// worldSchema is the simulated outside world's database.
const worldSchema = "world"

// Open attaches the databases in dir. world is the database of the simulated outside; when empty it is dir/world.db.
func Open(ctx context.Context, dir, world string) (_ *Checker, err error) {
	c, err := open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
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

// open makes a checker that sees no database yet.
func open(ctx context.Context) (*Checker, error) {
	db, err := sql.Open("sqlite", "file:check?mode=memory&_pragma=busy_timeout(10000)")
	if err != nil {
		return nil, err
	}
	c := &Checker{db: db, Now: time.Now, Details: 5, Keep: 7 * 24 * time.Hour}
	if c.conn, err = db.Conn(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Checker) attach(ctx context.Context, schema, path string) error {
	if _, err := os.Stat(path); err != nil && schema == worldSchema {
		return fmt.Errorf("the simulated outside world's file is not there: %w; it is world.db in the data folder of the process that has no --world: "+
			"name it with --world FILE", err)
	} else if err != nil {
		return fmt.Errorf("%s: %w; a whole platform has one file per service and the world's: %s.db, %s.db",
			path, err, strings.Join(Services(), ".db, "), worldSchema)
	}
	// Read-only: SQLite itself refuses whatever would change the file, and does not fold a killed platform's WAL into it either.
	// Without a WAL nobody has the file open; said to be immutable, it is read without leaving a WAL and a lock file beside
	// it. A platform that starts on the folder during the check may then be shown as broken; it is not harmed.
	uri := url.URL{Scheme: "file", Opaque: url.PathEscape(path), RawQuery: "mode=ro"}
	if _, err := os.Stat(path + "-wal"); errors.Is(err, fs.ErrNotExist) {
		uri.RawQuery += "&immutable=1"
	}
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
	errs = append(errs, c.db.Close())
	for _, o := range c.sources {
		errs = append(errs, o.DB.Close())
	}
	if c.copies != "" {
		errs = append(errs, os.RemoveAll(c.copies))
	}
	return errors.Join(errs...)
}

// Run checks every equation, each database in one snapshot, and returns them in the order of equationFiles, then those that
// SQL cannot compute.
func (c *Checker) Run(ctx context.Context) (_ []Equation, err error) {
	if err := c.copyAll(ctx); err != nil {
		return nil, err
	}
	tx, err := c.conn.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, tx.Rollback()) }()
	now := c.Now()
	if err := prepare(ctx, tx); err != nil {
		return nil, err
	}
	horizon, err := retained(ctx, tx, now, c.Keep)
	if err != nil {
		return nil, err
	}
	args := []any{sql.Named("now", now.UnixMicro()), sql.Named("horizon", horizon)}
	var equations []Equation
	for _, file := range equationFiles() {
		statements, names, err := parse(file)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			title, isBroken := strings.CutSuffix(name, ".broken")
			if !isBroken {
				continue
			}
			e, err := c.equation(ctx, tx, title, statements, args)
			if err != nil {
				return nil, fmt.Errorf("equation %q: %w", title, err)
			}
			equations = append(equations, e)
		}
	}
	for _, compute := range []func(context.Context, *sql.Tx) (Equation, error){c.writtenOnce, ledgerChain} {
		e, err := compute(ctx, tx)
		if err != nil {
			return nil, fmt.Errorf("equation %q: %w", e.Name, err)
		}
		equations = append(equations, e)
	}
	return equations, nil
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

// prepare makes the tables over all services.
func prepare(ctx context.Context, tx *sql.Tx) error {
	statements, names, err := parse("views.sql")
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, err := tx.ExecContext(ctx, statements[name]); err != nil {
			return fmt.Errorf("table %s: %w", name, err)
		}
	}
	for consumer, types := range Subscriptions() {
		for _, eventType := range types {
			if _, err := tx.ExecContext(ctx, "INSERT INTO subscription (consumer, type) VALUES (?, ?)", consumer, eventType); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Checker) equation(ctx context.Context, tx *sql.Tx, title string, statements map[string]string, args []any) (Equation, error) {
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
	var details []string
	err := each(ctx, tx, query, func(scan func(...any) error) error {
		var key, detail sql.NullString
		err := scan(&key, &detail)
		e.Broken++
		details = append(details, key.String+": "+detail.String)
		return err
	}, used...)
	e.Detail = c.firstFew(details)
	return e, err
}

// parse reads the file's "-- name: …" statements and repeats what stands in /*union:…*/ for every service.
func parse(file string) (statements map[string]string, names []string, err error) {
	text, err := texts.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	statements = map[string]string{}
	for _, part := range strings.Split("\n"+string(text), "\n-- name: ")[1:] {
		name, body, _ := strings.Cut(part, "\n")
		names = append(names, name)
		statements[name] = unions(strings.TrimSpace(body))
	}
	return statements, names, nil
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
