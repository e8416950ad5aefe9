package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/sync/errgroup"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/retain"
	"github.com/convergo/convergo/trade"
)

// relayCommand is `convergo relay`: only the relay, for an application in any language that writes to the outbox table.
type relayCommand struct {
	Config   kong.ConfigFlag `type:"path" placeholder:"FILE" help:"Configuration file: YAML, its keys are the flags."`
	Database string          `required:"" placeholder:"URL" help:"The application's database: postgres://…, mysql://… or sqlite:FILE."`
	Broker   string          `required:"" placeholder:"URL" help:"${relay_broker_help}"`
	Addr     string          `default:"127.0.0.1:8081" placeholder:"HOST:PORT" help:"Address of /healthz, /readyz and /stats (default: ${default})."`

	PlatformID string `placeholder:"ID" help:"Platform on the events: that of the services that this relay works beside (default: none)."`

	relayFlags `embed:""`

	Lease      time.Duration `default:"15s" help:"Term of a lease on a lane: after a crash another relay takes over within one and a half."`
	RetryBase  time.Duration `default:"1s" help:"First wait after a failed attempt; it doubles."`
	RetryCap   time.Duration `default:"1h" help:"Longest wait between two attempts."`
	KeepSent   time.Duration `default:"336h" help:"How long sent events stay replayable."`
	KeepBroker time.Duration `default:"168h" help:"How long the broker keeps an event, where this program sets that up."`
	ReadyLag   time.Duration `default:"1m" help:"Not ready when an event has waited longer."`
	Log        string        `default:"info" enum:"debug,info,warn,error" help:"Least level of log lines: debug, info, warn or error."`
	LogJSON    bool          `help:"Log lines as JSON."`
}

// relayFlags are the settings that a relay has and serve has not. The doctor takes them too.
type relayFlags struct {
	Name        string        `default:"relay" help:"Name of this relay in leases and logs (default: ${default})."`
	Workers     int           `default:"2" help:"Batches in flight at most."`
	Batch       int           `default:"512" help:"Events in a batch at most."`
	Poll        time.Duration `default:"100ms" help:"How often an idle relay looks: programs in other languages cannot wake it."`
	MaxAttempts int           `default:"16" help:"Attempts after which an event goes to the dead letters."`
	MaxWait     time.Duration `default:"72h" help:"How long events wait for a receiver that is away (an endpoint, a queue) without spending attempts."`
	SkipDead    bool          `help:"Later events of an aggregate go on past a dead one (default: they wait for a person)."`
	Unclaimed   []string      `placeholder:"topic.Type,topic.*" help:"Events that count as sent when nobody is subscribed to them."`
}

// subjects are those of --unclaimed.
func (f relayFlags) subjects() ([]convergo.Subject, error) {
	unclaimed, err := parseSubjects(f.Unclaimed)
	if err != nil {
		return nil, fmt.Errorf("--unclaimed: %w", err)
	}
	return unclaimed, nil
}

func (c relayCommand) validate() error {
	if c.Workers < 1 || c.Batch < 1 || c.MaxAttempts < 1 {
		return errors.New("--workers, --batch and --max-attempts are at least 1")
	}
	if c.Database == "" || c.Broker == "" {
		return errors.New("--database or --broker is empty: an address such as postgres://USER:PASSWORD@HOST/DATABASE and nats://HOST")
	}
	if strings.HasPrefix(c.Broker, "embedded:") {
		return errors.New("--broker embedded: is inside the process of `convergo serve`; a relay needs a broker that others can reach")
	}
	if err := checkListen("--addr", c.Addr); err != nil {
		return err
	}
	if strings.Contains(c.Database, "{service}") {
		return fmt.Errorf("--database %q: {service} means nothing to a relay, which has one outbox: name it, for example by ?schema=order", redacted(c.Database))
	}
	if err := convergo.ValidateOrigin(c.PlatformID); err != nil {
		return fmt.Errorf("--platform-id: %w", err)
	}
	return positive([]setting{
		{"--lease", c.Lease}, {"--poll", c.Poll}, {"--retry-base", c.RetryBase}, {"--retry-cap", c.RetryCap}, {"--keep-sent", c.KeepSent},
		{"--keep-broker", c.KeepBroker}, {"--ready-lag", c.ReadyLag}, {"--max-wait", c.MaxWait},
	})
}

// Run relays until ctx ends (SIGTERM, SIGINT), then finishes what is in flight and gives its lanes back.
func (c relayCommand) Run(ctx context.Context, s streams) (err error) {
	if err := c.validate(); err != nil {
		return misuse(err)
	}
	unclaimed, err := c.subjects()
	if err != nil {
		return misuse(err)
	}
	log := logger(c.Log, c.LogJSON, s.err)
	store, err := openStoreWith(ctx, c.Database, storeOptions{name: c.Name, setting: "--database", log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	to, err := connectBroker(ctx, c.Broker, brokerOptions{maxAge: c.KeepBroker, unclaimed: unclaimed, log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.close()) }()
	to.warn(ctx, log)
	to.warnRoom(ctx, nil, largerDie, log)
	listener, err := net.Listen("tcp", c.Addr)
	if err != nil {
		return fmt.Errorf("listen: %w; name another address with --addr", err)
	}
	policy := relay.TopicPolicy{Backoff: backoff(c.RetryBase, c.RetryCap), MaxAttempts: c.MaxAttempts}
	r := relay.New(store, to, relay.Config{
		Name: c.Name, Workers: c.Workers, Batch: c.Batch, Lease: c.Lease, Poll: c.Poll, Log: log,
		Backoff: policy.Backoff, MaxAttempts: policy.MaxAttempts, OnDead: c.policy(), MaxWait: c.MaxWait, Origin: c.PlatformID,
	})
	store.OnEvents(r.Wake)
	to.tellWhenBack(r.BrokerBack)
	keeper := retain.New([]retain.Job{{Name: "sent events", Keep: c.KeepSent, Purge: store.PurgeSent}}, retain.Config{Log: log})
	_, _ = fmt.Fprintf(s.out, "convergo %s relays %s to %s; probes on http://%s\n", version(), redacted(c.Database), redacted(c.Broker), listener.Addr())
	server := &http.Server{Handler: c.handler(store, r), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second}
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error { return r.Run(running) })
	g.Go(func() error { return keeper.Run(running) })
	g.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error { <-running.Done(); return server.Close() })
	return g.Wait()
}

func (c relayCommand) policy() relay.Policy {
	if c.SkipDead {
		return relay.SkipEvent
	}
	return relay.HoldAggregate
}

// handler serves the probes. They tell nothing that is secret: names, counts and times.
func (c relayCommand) handler(store *opened, r *relay.Relay) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /readyz", probing(time.Now, "flowing", seeLog, flowing(c.ReadyLag, flow{c.Name, store.Backlog, r.Stats})))
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, q *http.Request) {
		s := r.Stats()
		ctx, cancel := context.WithTimeout(q.Context(), 5*time.Second)
		defer cancel()
		b, err := store.Backlog(ctx, time.Now())
		if err != nil {
			trade.WriteProblem(w, trade.NewProblem(http.StatusServiceUnavailable, "", "the database does not answer", "see the relay's log"))
			return
		}
		writeJSON(w, http.StatusOK, map[string]any{
			"unavailable": s.Unavailable, "waiting_events": b.Waiting.Count, "dead_waiting": b.Dead.Count,
			"events_sent": s.Sent, "send_failures": s.Failed, "dead_events": s.Dead, "lanes": s.Lanes, "broker_outage": s.InOutage, "process": os.Getpid(),
		})
	})
	return mux
}
