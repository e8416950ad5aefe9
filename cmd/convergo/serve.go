package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/retain"
)

// serveCommand is `convergo serve`. Every flag is also an environment variable, CONVERGO_….
type serveCommand struct {
	backends       `embed:""`
	Data           string            `default:"convergo-data" type:"path" placeholder:"DIR" help:"Data folder; made when missing (default: ${default})."`
	Secrets        string            `type:"path" placeholder:"FILE" help:"${secrets_help}"`
	Addr           string            `default:"127.0.0.1:8080" placeholder:"HOST:PORT" help:"Address to listen on; port 0 takes a free one (default: ${default})."`
	Services       []string          `default:"${services}" placeholder:"a,b" help:"Services to run (default: all). Events for the others wait in the broker."`
	Peers          map[string]string `placeholder:"SERVICE=URL" help:"${peers_help}"`
	TrustedProxies []string          `placeholder:"CIDR,..." help:"${trusted_proxies_help}"`
	PublicURL      string            `placeholder:"URL" help:"Where customers and the payment channel reach this process (default: the address)."`
	World          string            `placeholder:"URL" help:"Base URL of the payment channel, carrier and messenger (default: simulated inside this process)."`

	platformFlags `embed:""`

	PaymentWindow time.Duration `default:"30m" help:"How long an order may stay unpaid."`
	UnknownGrace  time.Duration `default:"30s" help:"How long money for an unknown order waits before it is sent back."`
	Transit       time.Duration `default:"10s" help:"How long a simulated parcel travels."`
	TrackEvery    time.Duration `default:"2s" help:"How often the carrier is asked where a parcel is."`

	Lease        time.Duration `default:"15s" help:"Term of a relay's lease on a lane."`
	CallLease    time.Duration `default:"30s" help:"Term of a lease on an outgoing call."`
	RetryBase    time.Duration `default:"1s" help:"First wait after a failed attempt; it doubles."`
	RetryCap     time.Duration `default:"1h" help:"Longest wait between two attempts."`
	KeepSent     time.Duration `default:"336h" help:"How long sent events stay replayable."`
	KeepInbox    time.Duration `default:"336h" help:"How long a consumer remembers what it applied; longer than --keep-broker."`
	KeepBroker   time.Duration `default:"168h" help:"How long the broker keeps an event."`
	KeepRequests time.Duration `default:"168h" help:"How long an Idempotency-Key is remembered."`

	Rate      float64       `default:"200" help:"Requests a second that one principal may make, one address ten times as many; 0 for no limit."`
	Burst     int           `default:"400" help:"Requests that one principal may make at once, one address ten times as many."`
	ReadyLag  time.Duration `default:"1m" help:"/flowz says no when an event has waited longer."`
	StopGrace time.Duration `default:"15s" help:"How long a stop waits for requests in flight."`
	Log       string        `default:"info" enum:"debug,info,warn,error" help:"Least level of log lines: debug, info, warn or error."`
	LogJSON   bool          `help:"Log lines as JSON."`

	CrashAt   string  `group:"Drill" placeholder:"POINT:N" help:"Kill this process the N-th time it passes a named point."`
	FaultRate float64 `group:"Drill" placeholder:"0..1" help:"Share of handler runs that fail on purpose."`
	FaultSeed uint64  `group:"Drill" default:"1" help:"Seed of the failures."`

	CommitDelay time.Duration `group:"Drill" help:"Makes every commit take so much longer, as on a slower disk."`
}

// Run serves until ctx ends (SIGTERM, SIGINT), then stops cleanly.
func (c serveCommand) Run(ctx context.Context, s streams) error {
	if err := c.validate(); err != nil {
		return misuse(err)
	}
	defer collectSeldom()()
	log := logger(c.Log, c.LogJSON, s.err)
	if err := refuseForeignFolder(c.Data); err != nil {
		return err
	}
	f, err := openFolder(c.Data, c.Secrets)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", c.Addr)
	if err != nil {
		return errors.Join(fmt.Errorf("listen: %w; name another address with --addr", err), f.abandon())
	}
	c.Addr = listener.Addr().String()
	p, err := openPlatform(ctx, c, f, log)
	if err != nil {
		return errors.Join(err, listener.Close(), f.abandon())
	}
	c.greet(s, f)
	err = p.serve(ctx, listener)
	if closing := p.close(); closing != nil || err != nil {
		return errors.Join(err, closing, f.lock.Unlock()) // the sign of life stays: this was no clean stop
	}
	log.Info("stopped cleanly")
	return errors.Join(p.forgetOwed(), f.close()) // a clean stop has written everything out
}

func (c serveCommand) greet(s streams, f *folder) {
	file := c.Secrets
	if file == "" {
		file = f.file(secretsFile)
	}
	key := "in " + file
	if s.shown { // what goes to a file or a pipe is kept, and read by others
		key = f.Secrets.OperatorKey + " (" + key + ")"
	}
	// Where the output goes is the caller's business; a closed pipe must not end the platform.
	world := c.World
	if world == "" {
		world = "simulated in this process (" + f.file(worldFile) + ")"
	}
	_, _ = fmt.Fprintf(s.out, "convergo %s serves %s on %s\n  data           %s\n  documentation  %s/docs\n  outside world  %s\n  operator key   %s\n",
		version(), strings.Join(c.Services, ", "), c.url(), c.Data, c.url(), world, key)
}

// filesInFolder are the databases of this process that are files of the data folder, which nobody else may open.
func (c serveCommand) filesInFolder() []string {
	var names []string
	for _, name := range c.Services {
		if c.databaseURL(c.Data, name) == "sqlite:"+filepath.Join(c.Data, name+".db") {
			names = append(names, name)
		}
	}
	if c.World == "" {
		names = append(names, "world")
	}
	return names
}

func (c serveCommand) validate() error {
	if err := c.backends.validate(); err != nil {
		return err
	}
	if len(c.Services) == 0 {
		return errors.New("--services names no service")
	}
	for i, name := range c.Services {
		if !slices.Contains(serviceNames(), name) {
			return fmt.Errorf("--services: there is no service %q; there are %s", name, strings.Join(serviceNames(), ", "))
		}
		if slices.Contains(c.Services[:i], name) {
			return fmt.Errorf("--services: %q stands there twice", name)
		}
	}
	if err := c.validateAddresses(); err != nil {
		return err
	}
	if err := c.validatePlatform(); err != nil {
		return err
	}
	if err := c.validatePeers(); err != nil {
		return err
	}
	if _, err := parseNetworks(c.TrustedProxies); err != nil {
		return fmt.Errorf("--trusted-proxies: %w", err)
	}
	if u, err := url.Parse(c.PublicURL); c.PublicURL != "" && (err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil) {
		return fmt.Errorf("--public-url %q is not a base URL such as https://shop.example", redacted(c.PublicURL))
	}
	if len(c.Peers) > 0 && c.Secrets == "" {
		return errors.New("--peers needs --secrets FILE, the same for all processes: this one would make secrets of its own, and the others would not " +
			"know it; `convergo secrets --data DIR` makes such a file, secrets.json, as `convergo serve` does in its data folder")
	}
	if !(c.FaultRate >= 0 && c.FaultRate <= 0.9) { // NaN is no rate either
		return fmt.Errorf("--fault-rate %v is not between 0 and 0.9", c.FaultRate)
	}
	if !(c.Rate >= 0) || c.Burst < 0 {
		return fmt.Errorf("--rate %v and --burst %d must not be negative", c.Rate, c.Burst)
	}
	if _, err := crashAt(c.CrashAt, io.Discard); err != nil {
		return err
	}
	if err := positive([]setting{
		{"--payment-window", c.PaymentWindow}, {"--unknown-grace", c.UnknownGrace}, {"--transit", c.Transit}, {"--track-every", c.TrackEvery},
		{"--lease", c.Lease}, {"--call-lease", c.CallLease}, {"--retry-base", c.RetryBase}, {"--retry-cap", c.RetryCap},
		{"--keep-sent", c.KeepSent}, {"--keep-inbox", c.KeepInbox}, {"--keep-broker", c.KeepBroker}, {"--keep-requests", c.KeepRequests},
		{"--stop-grace", c.StopGrace}, {"--ready-lag", c.ReadyLag},
	}); err != nil {
		return err
	}
	if c.RetryCap < c.RetryBase {
		return fmt.Errorf("--retry-cap %v is shorter than --retry-base %v", c.RetryCap, c.RetryBase)
	}
	if err := retain.CheckWindow(c.KeepInbox, c.KeepBroker); err != nil {
		return fmt.Errorf("--keep-inbox and --keep-broker: %w", err)
	}
	return nil
}

// validateAddresses reads the addresses as they are read when they are opened, so that a mistake is told before anything is.
func (c serveCommand) validateAddresses() error {
	if err := checkListen("--addr", c.Addr); err != nil {
		return err
	}
	for _, name := range c.Services {
		if err := checkDatabase(c.databaseURL(c.Data, name)); err != nil {
			return fmt.Errorf("database of %s: %w", name, err)
		}
	}
	_, err := connectBroker(context.Background(), c.brokerURL(), brokerOptions{read: true})
	return err
}

// setting is a flag and its value.
type setting struct {
	flag  string
	value time.Duration
}

func positive(settings []setting) error {
	for _, s := range settings {
		if s.value <= 0 {
			return fmt.Errorf("%s %v is not positive", s.flag, s.value)
		}
	}
	return nil
}

func logger(least string, asJSON bool, to io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(least)) // the flag's enum allows valid names only
	options := &slog.HandlerOptions{Level: level}
	if asJSON {
		return slog.New(slog.NewJSONHandler(to, options))
	}
	return slog.New(slog.NewTextHandler(to, options))
}

// url is where customers reach this process.
func (c serveCommand) url() string {
	if c.PublicURL != "" {
		return strings.TrimSuffix(c.PublicURL, "/")
	}
	return c.local()
}

// local is where this process reaches itself: the address that it listens on, or one that can be opened when that stands for all
// addresses of the machine.
func (c serveCommand) local() string {
	host, port, err := net.SplitHostPort(c.Addr)
	if ip := net.ParseIP(host); err == nil && (host == "" || (ip != nil && ip.IsUnspecified())) {
		return "http://" + net.JoinHostPort("127.0.0.1", port)
	}
	return "http://" + c.Addr
}

func backoff(base, most time.Duration) convergo.Backoff {
	return convergo.Backoff{Base: base, Cap: most}
}

// serve answers requests and runs the platform until ctx ends. First no new requests are taken and those in flight are
// finished, then the platform stops.
func (p *platform) serve(ctx context.Context, listener net.Listener) error {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	server := &http.Server{
		Handler: recovered(p.log, p.truthful(p.handler())), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second,
		WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10, ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
	ran, served := make(chan error, 1), make(chan error, 1)
	go func() { ran <- p.run(running) }()
	go func() { served <- server.Serve(listener) }()
	var failed error
	select {
	case <-ctx.Done():
	case failed = <-ran:
		failed = errors.Join(errors.New("a part of the platform ended"), failed)
		ran <- nil
	case failed = <-served:
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.StopGrace)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		p.log.Warn("requests in flight were cut off; clients may repeat them with the same Idempotency-Key", "error", err)
		_ = server.Close()
	}
	stop()
	if err := <-ran; err != nil {
		failed = errors.Join(failed, err)
	}
	if errors.Is(failed, http.ErrServerClosed) {
		return nil
	}
	return failed
}
