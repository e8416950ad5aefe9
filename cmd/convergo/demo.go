package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/convergo/convergo/drill"
)

// demoCommand is `convergo demo`.
type demoCommand struct {
	backends  `embed:""`
	Orders    string            `type:"existingfile" placeholder:"FILE.csv" help:"Real orders in the Online Retail format instead of a generated day."`
	Limit     int               `help:"Use only the first N orders of the file."`
	Count     int               `default:"600" help:"Orders of a generated day."`
	Seed      uint64            `default:"1" help:"Seed of the day and of everything that goes wrong."`
	Buyers    int               `default:"64" help:"Buyers at the same time."`
	Kills     int               `default:"3" help:"How often the platform is killed with SIGKILL and started again on its data."`
	Faults    float64           `default:"0.02" help:"Share of handler runs that fail on purpose."`
	Keep      string            `type:"path" placeholder:"DIR" help:"Keep the data there (a new or empty folder)."`
	Serve     bool              `help:"Stay up afterwards, until interrupted."`
	JSON      bool              `help:"The report as JSON on standard output."`
	Instances int               `default:"2" help:"With a database or broker outside: processes of each service."`
	Relays    int               `default:"2" help:"With a database or broker outside: relays beside those that the services have."`
	Disturb   map[string]string `mapsep:"none" placeholder:"NAME=COMMAND" help:"${disturb_help}"`

	Timeout time.Duration `default:"10m" help:"Give up, and say BROKEN, when the platform has not converged by then."`
}

// Run plays the day. It fails unless the platform converged.
func (c demoCommand) Run(ctx context.Context, s streams) (err error) {
	if err := c.validate(); err != nil {
		return err
	}
	day, account, err := c.day(ctx)
	if err != nil {
		return err
	}
	if err := c.refuseUsed(ctx); err != nil {
		return err
	}
	dir, done, err := c.folder()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	d, err := c.newDrill(ctx, s, dir, day)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if !s.terminal { // where there is a terminal the bar tells
		_, _ = fmt.Fprintf(s.err, "%d orders, %d buyers at a time, %d kills\n", len(day.Orders), c.Buyers, c.Kills)
	}
	report := d.play(ctx, c.Timeout)
	if ctx.Err() != nil && !c.Serve {
		return errors.New("interrupted before the end of the day; nothing was judged")
	}
	report.FileAccount, report.Seed = account, c.Seed
	if !c.Serve {
		if err := d.platform.Stop(30 * time.Second); err != nil {
			report.Reasons = append(report.Reasons, err.Error())
		}
	}
	report.Decide()
	write := report.WriteText
	if c.JSON {
		write = report.WriteJSON
	}
	if err := write(s.out); err != nil {
		return err
	}
	if c.Serve && ctx.Err() == nil {
		_, _ = fmt.Fprintf(s.err, "The platform stays up on %s (operator key in %s). Interrupt to stop.\n", d.url, filepath.Join(dir, secretsFile))
		<-ctx.Done()
		if err := d.platform.Stop(30 * time.Second); err != nil {
			return err
		}
	}
	if report.Verdict != drill.Converged {
		return errors.New("the platform did not converge; see the report")
	}
	return nil
}

func (c demoCommand) validate() error {
	switch {
	case c.Count < 1 || c.Count > 1_000_000:
		return fmt.Errorf("--count %d is not between 1 and 1,000,000", c.Count)
	case c.Buyers < 1 || c.Buyers > 1_000:
		return fmt.Errorf("--buyers %d is not between 1 and 1,000", c.Buyers)
	case c.Kills < 0 || c.Kills > 1_000:
		return fmt.Errorf("--kills %d is not between 0 and 1,000", c.Kills)
	case c.Limit < 0:
		return fmt.Errorf("--limit %d is negative", c.Limit)
	case c.Limit > 0 && c.Orders == "":
		return errors.New("--limit is for a file: name one with --orders, or say --count for a generated day")
	case !(c.Faults >= 0 && c.Faults <= 0.5): // NaN is no share either
		return fmt.Errorf("--faults %v is not between 0 and 0.5", c.Faults)
	case c.Instances < 1 || c.Instances > 16 || c.Relays < 0 || c.Relays > 64:
		return fmt.Errorf("--instances %d is not between 1 and 16, or --relays %d not between 0 and 64", c.Instances, c.Relays)
	case len(c.Disturb) > 0 && !c.manyProcesses():
		return errors.New("--disturb is for a platform whose database or broker is outside: name one with --config, --database or --broker")
	case c.manyProcesses() && c.embedded():
		return errors.New("--broker: many processes need a broker that all of them can reach")
	case c.Timeout <= 0:
		return fmt.Errorf("--timeout %v is not positive", c.Timeout)
	}
	return c.backends.validate()
}

// manyProcesses tells whether the platform is to run on databases or a broker that are set up: it is many processes then.
func (c demoCommand) manyProcesses() bool {
	return c.Database != "" || len(c.Databases) > 0 || c.Broker != ""
}

// refuseUsed refuses databases in which something has happened: the drill writes false orders, and judges all that is there.
func (c demoCommand) refuseUsed(ctx context.Context) error {
	if !c.manyProcesses() || (c.Database == "" && len(c.Databases) == 0) {
		return nil // files in a folder of its own
	}
	for _, service := range serviceNames() {
		address := c.databaseURL("", service)
		used, err := isUsed(ctx, address)
		if err != nil {
			return fmt.Errorf("database of %s: %w", service, err)
		}
		if used {
			return fmt.Errorf("%s is not empty: the drill writes false orders and judges everything that is there; name new databases, for example "+
				"another schema prefix: ?schema=drill_{service}", redacted(address))
		}
	}
	return nil
}

// day is the day to play, and with a file the account of its rows.
func (c demoCommand) day(ctx context.Context) (drill.Day, *drill.FileAccount, error) {
	if c.Orders == "" {
		return drill.Generate(c.Seed, c.Count), nil, nil
	}
	type result struct {
		day     drill.Day
		account *drill.FileAccount
		err     error
	}
	read := make(chan result, 1)
	go func() {
		day, account, err := c.readDay()
		read <- result{day, account, err}
	}()
	select { // a pipe that nobody writes to blocks already when it is opened
	case r := <-read:
		return r.day, r.account, r.err
	case <-ctx.Done():
		return drill.Day{}, nil, fmt.Errorf("%s: reading was interrupted", c.Orders)
	}
}

func (c demoCommand) readDay() (drill.Day, *drill.FileAccount, error) {
	f, err := os.Open(c.Orders)
	if err != nil {
		return drill.Day{}, nil, err
	}
	retail, err := drill.ReadRetail(f, c.Limit)
	if err = errors.Join(err, f.Close()); err != nil {
		return drill.Day{}, nil, fmt.Errorf("%s: %w", c.Orders, err)
	}
	if len(retail.Orders) == 0 {
		return drill.Day{}, nil, fmt.Errorf("%s: no row of the file is an order", c.Orders)
	}
	return retail.Day, retail.Account(), nil
}

// folder is where the data goes, and what to do with it at the end.
func (c demoCommand) folder() (string, func() error, error) {
	if c.Keep == "" {
		dir, err := os.MkdirTemp("", "convergo-demo-")
		return dir, func() error { return os.RemoveAll(dir) }, err
	}
	entries, err := os.ReadDir(c.Keep)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", nil, fmt.Errorf("--keep: %w", err)
	}
	if len(entries) > 0 {
		return "", nil, fmt.Errorf("--keep %s is not empty; name a new folder", c.Keep)
	}
	return c.Keep, func() error { return nil }, os.MkdirAll(c.Keep, 0o700)
}
