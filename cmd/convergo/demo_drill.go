package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/convergo/convergo/drill"
	"github.com/convergo/convergo/internal/freeport"
	"github.com/convergo/convergo/trade/simulate"
)

// theDrill is a platform in a child process, and the world and the shop in this one.
type theDrill struct {
	demoCommand
	dir       string
	shop      *drill.Shop
	platform  platformUnderTest
	url       string // of the platform
	journals  []string
	world     *outsideWorld
	outside   *http.Server
	stopWorld func() error
	bar       *progressbar.ProgressBar
	finished  atomic.Int64 // buyers
	log       *os.File

	kills      []time.Time
	disturbed  map[string]int // by what it was
	duplicates int64          // noticed by processes that were killed since
	poison     int
}

func (c demoCommand) newDrill(ctx context.Context, s streams, dir string, day drill.Day) (_ *theDrill, err error) {
	d := &theDrill{demoCommand: c, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	secrets, err := loadSecrets(dir)
	if err != nil {
		return nil, err
	}
	address, err := freeport.Address()
	if err != nil {
		return nil, err
	}
	worldURL, err := d.openWorld(ctx, secrets, "http://"+address)
	if err != nil {
		return nil, err
	}
	if d.log, err = os.OpenFile(filepath.Join(dir, "platform.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := d.layOut(ctx, program, address, worldURL); err != nil {
		return nil, err
	}
	transport := &http.Transport{MaxIdleConnsPerHost: c.Buyers + 8}
	client := &drill.Client{URL: d.url, OperatorKey: secrets.OperatorKey, HTTP: &http.Client{Transport: transport, Timeout: 20 * time.Second}}
	d.bar = progressbar.NewOptions(len(day.Orders), progressbar.OptionSetWriter(progressWriter(s)), progressbar.OptionSetDescription("orders"),
		progressbar.OptionShowCount(), progressbar.OptionClearOnFinish(), progressbar.OptionSetWidth(30))
	d.shop = &drill.Shop{
		Day: day, Client: client, Cashier: d.world, Buyers: c.Buyers, Strangers: 1 + len(day.Orders)/100,
		Progress: func() { d.finished.Add(1); _ = d.bar.Add(1) },
	}
	return d, nil
}

// layOut says which processes the platform is made of.
func (d *theDrill) layOut(ctx context.Context, program, address, worldURL string) (err error) {
	d.url = "http://" + address
	if !d.manyProcesses() {
		args := append([]string{"serve", "--data", d.dir, "--addr", address, "--world", worldURL}, d.drillArgs(0)...)
		d.platform = alone{&drill.Child{Program: program, URL: d.url, Output: d.log, Args: args, Without: envPrefix}}
		d.journals = []string{filepath.Join(d.dir, faultsFile)}
		return nil
	}
	f, err := d.newFleet(program, d.dir, filepath.Join(d.dir, secretsFile), worldURL, address, d.log)
	if err != nil {
		return err
	}
	d.platform, d.journals = f, f.journals()
	return nil
}

// drillArgs are short times: a drill has about a minute. Every instance has a seed of its own.
func (c demoCommand) drillArgs(instance int) []string {
	return []string{
		"--log", "warn", "--rate", "0", "--payment-window", "15s", "--unknown-grace", "500ms", "--track-every", "300ms",
		"--retry-base", "50ms", "--retry-cap", "500ms", "--fault-rate", fmt.Sprint(c.Faults), "--fault-seed", fmt.Sprint(c.Seed + uint64(instance)),
	}
}

func progressWriter(s streams) io.Writer {
	if s.terminal {
		return s.err
	}
	return io.Discard
}

// openWorld runs the outside in this process: it survives the platform.
func (d *theDrill) openWorld(ctx context.Context, s secrets, shop string) (string, error) {
	var err error
	faults := simulate.Faults{
		Seed: d.Seed, Copies: 8, Delay: 400 * time.Millisecond, Forged: 50, LostAnswers: 50, Hang: 100 * time.Millisecond, Errors: 30, Refusals: 50,
	}
	if d.world, err = openWorld(ctx, filepath.Join(d.dir, worldFile), s, shop, faults, 600*time.Millisecond, nil); err != nil {
		return "", err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	d.outside = &http.Server{Handler: d.world.Handler(), ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = d.outside.Serve(l) }() // ends with Close
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- d.world.Run(running) }()
	d.stopWorld = func() error { stop(); return <-ended }
	return "http://" + l.Addr().String(), nil
}

func (d *theDrill) close() error {
	var errs []error
	if d.platform != nil {
		_ = d.platform.Kill() // it is stopped already, or is not worth more
	}
	if d.outside != nil {
		errs = append(errs, d.outside.Close())
	}
	if d.stopWorld != nil {
		errs = append(errs, d.stopWorld())
	}
	if d.world != nil {
		errs = append(errs, d.world.close())
	}
	if d.log != nil {
		errs = append(errs, d.log.Close())
	}
	return errors.Join(errs...)
}

// play plays the day, waits until everything is quiet and checks. What went wrong is in the report.
func (d *theDrill) play(ctx context.Context, timeout time.Duration) *drill.Report {
	began := time.Now()
	report := &drill.Report{Orders: map[string]int{}, Effects: map[string]int{}, Faults: map[string]int{}}
	wrong := func(what string, err error) {
		if err != nil {
			report.Reasons = append(report.Reasons, what+": "+err.Error())
		}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := d.platform.Start(ctx); err != nil {
		wrong("start", err)
		return report
	}
	if err := d.shop.Open(ctx); err != nil {
		wrong("opening the shop", err)
		return report
	}
	killing := make(chan error, 1)
	over := make(chan struct{})
	go func() { killing <- d.kill(ctx, over) }()
	wrong("buyers", d.shop.Run(ctx))
	close(over)
	wrong("kill and restart", <-killing)
	_ = d.bar.Finish()
	wrong("convergence", d.shop.Settle(ctx, d.quiet))
	// Whatever happened so far, the tables are looked at: they say what is wrong.
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	discarded, err := d.shop.Client.DiscardPoison(ctx)
	wrong("dead letters", err)
	if d.poison > 0 && discarded == 0 {
		wrong("dead letters", errors.New("the poison event was not parked anywhere"))
	}
	report.Faults[drill.FaultPoison] = d.poison
	report.Reasons = append(report.Reasons, d.shop.Unexpected()...)
	wrong("check", d.check(ctx, report))
	report.Elapsed = time.Since(began).Seconds()
	return report
}

// kill kills the platform at random moments of the day and starts it again, and slips a poison event in. A day that is over
// has reached every moment: its last buyers may have come to their end all at once.
func (d *theDrill) kill(ctx context.Context, over <-chan struct{}) error {
	random := rand.New(rand.NewPCG(d.Seed, 0x6b696c6c))
	total := int64(len(d.shop.Day.Orders))
	for i := range d.Kills + 1 {
		// One moment in each part of the day; in the first part there is poison instead of a kill.
		moment := (int64(i)*total + random.Int64N(total)) / int64(d.Kills+1)
		for waiting := true; waiting && d.finished.Load() < moment; {
			select {
			case <-ctx.Done():
				return nil
			case <-over:
				waiting = false
			case <-time.After(time.Millisecond):
			}
		}
		if i == 0 {
			if err := poison(ctx, d.databaseURL(d.dir, "risk"), 1); err != nil {
				return err
			}
			d.poison++
			continue
		}
		if err := d.killOnce(ctx, i-1); err != nil {
			return err
		}
	}
	return nil
}

func (d *theDrill) killOnce(ctx context.Context, i int) error {
	if n, err := d.shop.Client.Duplicates(ctx); err == nil {
		d.duplicates += n
	}
	d.kills = append(d.kills, time.Now().UTC())
	what, err := d.platform.disturb(ctx, i)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if d.disturbed == nil {
		d.disturbed = map[string]int{}
	}
	d.disturbed[what]++
	return nil
}

// quiet: the channel has delivered its notices.
func (d *theDrill) quiet(ctx context.Context) (bool, error) {
	s, err := d.world.Stats(ctx)
	return s.NoticesPending == 0, err
}

// check runs the equations and fills the report's figures.
func (d *theDrill) check(ctx context.Context, report *drill.Report) (err error) {
	duplicates, err := d.shop.Client.Duplicates(ctx)
	if err != nil {
		return err
	}
	checker, err := openChecker(ctx, d.backends, d.dir, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, checker.Close()) }()
	if report.Equations, err = checker.Settled(ctx, 5*time.Second); err != nil {
		return err
	}
	figures, err := checker.Figures(ctx)
	if err != nil {
		return err
	}
	var faults []drill.Fault
	for _, name := range d.journals {
		noted, err := drill.ReadJournal(name)
		if err != nil {
			return err
		}
		faults = append(faults, noted...)
	}
	stats, err := d.world.Stats(ctx)
	if err != nil {
		return err
	}
	report.CountFaults(stats.Faults, faults, d.shop.Faults)
	for what, n := range d.disturbed {
		report.Faults[what] = n
	}
	report.Orders, report.Effects = figures.Orders, figures.Effects
	for class, n := range figures.Receipts {
		report.Effects[class] = n
	}
	report.DuplicatesAbsorbed = figures.Repeats + int(d.duplicates+duplicates+d.shop.Client.Replayed.Load())
	report.Convergence = drill.NewConvergence(drill.Waits(figures.Deliveries, figures.Returned, d.kills, faults))
	if believed := report.Faults[drill.FaultBelieved]; believed > 0 {
		report.Reasons = append(report.Reasons, fmt.Sprintf("%d forged notices were believed", believed))
	}
	return nil
}
