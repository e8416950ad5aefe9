// Command convergo runs the order platform, its demo and its checker.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"reflect"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

// commands of the program, one file a subcommand.
type commands struct {
	Serve   serveCommand   `cmd:"" help:"Run the order platform."`
	Demo    demoCommand    `cmd:"" help:"Run a shop's day with everything going wrong; exit 0 only if it converged."`
	Check   checkCommand   `cmd:"" help:"Check the conservation equations over the raw tables of a data folder."`
	Relay   relayCommand   `cmd:"" help:"Relay the outbox of an application in any language to a broker."`
	Replay  replayCommand  `cmd:"" help:"Send again what was sent since a time: fills a broker that lost its data."`
	Dead    deadCommand    `cmd:"" help:"List, send again or give up what waits for a person."`
	Doctor  doctorCommand  `cmd:"" help:"Look whether serve, or a relay, could run with its settings, and what could be lost."`
	Config  configCommand  `cmd:"" help:"Print the settings that serve would run with, without secrets."`
	Probe   probeCommand   `cmd:"" help:"Ask a running process whether it is ready; for health checks of containers."`
	Secrets secretsCommand `cmd:"" help:"Make the secrets that the processes of a platform share, and print the file's name."`
	Version versionCommand `cmd:"" help:"Print the version."`
}

// streams are where a command writes.
type streams struct {
	out, err io.Writer
	terminal bool // err is a terminal: progress may be drawn
	shown    bool // out is a terminal: a person sees it, and nothing keeps it
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], streams{os.Stdout, os.Stderr, isTerminal(os.Stderr), isTerminal(os.Stdout)})
	stop()
	os.Exit(code)
}

// run is the whole program, so that tests can call it. It returns the exit code: 0 done, 1 failed or not converged, 2 used
// wrongly.
func run(ctx context.Context, args []string, s streams) int {
	var cli commands
	exited := -1
	parser, err := programParser(&cli, s, func(code int) { exited = code })
	if err != nil {
		_, _ = fmt.Fprintln(s.err, "convergo:", err)
		return 2
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if exited >= 0 { // --help was printed
		return exited
	}
	if err != nil {
		_, _ = fmt.Fprintf(s.err, "convergo: %v (see %s --help)\n", err, mistaken(err))
		return 2
	}
	warnOfEnvironment(s.err, parsed)
	parsed.BindTo(ctx, (*context.Context)(nil))
	parsed.Bind(s)
	if err := parsed.Run(); err != nil {
		_, _ = fmt.Fprintln(s.err, "convergo:", err)
		if errors.As(err, new(misuseError)) {
			return 2
		}
		return 1
	}
	return 0
}

// mistaken is the command that the command line had come to when the error was found: its help is the one to read.
func mistaken(err error) string {
	words := []string{"convergo"}
	var e *kong.ParseError
	if errors.As(err, &e) && e.Context != nil {
		for _, p := range e.Context.Path {
			if p.Command != nil {
				words = append(words, p.Command.Name)
			}
		}
	}
	return strings.Join(words, " ")
}

// misuseError is an error of how the program is used: nothing was begun, and it stays until the command line, the environment or the file is
// changed.
type misuseError struct{ error }

func (m misuseError) Unwrap() error { return m.error }

// misuse marks err, and leaves nil what it is.
func misuse(err error) error {
	if err == nil {
		return nil
	}
	return misuseError{err}
}

// programParser reads the command line, the environment and the configuration file. exit is called when --help was printed.
func programParser(cli *commands, s streams, exit func(code int)) (*kong.Kong, error) {
	return kong.New(cli,
		kong.Name("convergo"),
		kong.Description("Effects exactly once as far as the business can see: an outbox, a relay, idempotent consumers, and an order platform on them."),
		helpTexts(),
		kong.DefaultEnvars("CONVERGO"), kong.Configuration(loadConfig), kong.Writers(s.out, s.err),
		kong.TypeMapper(reflect.TypeFor[map[string]string](), kong.MapperFunc(namedTexts)),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Exit(exit),
	)
}

// helpTexts are what the tags of flags stand in for with ${name}.
func helpTexts() kong.Vars {
	return kong.Vars{
		"services": strings.Join(serviceNames(), ","),
		"database_help": "Database of a service; {service} stands for its name. sqlite:FILE, postgres://USER:PASSWORD@HOST/DATABASE?schema={service}, " +
			"mysql://USER:PASSWORD@HOST/convergo_{service} (default: one SQLite file per service in the data folder).",
		"broker_help": "embedded:, nats://HOST, kafka://HOST, amqp://HOST, redis://HOST, rocketmq://HOST (default: embedded, a server inside this process).",
		"relay_broker_help": "nats://…, kafka://…, amqp://…, redis://…, rocketmq://…, or webhook:FILE for signed posts to the endpoints that the file " +
			"names.",
		"secrets_help": "The platform's secrets, when several processes share them (default: secrets.json in the data folder, made when missing).",
		"peers_help": "Where services that run in other processes are reached: requests for them are passed on, and the story of an order is collected " +
			"from them.",
		"trusted_proxies_help": "Networks of reverse proxies before this process: of requests from there, and no others, Forwarded or X-Forwarded-For tells " +
			"the client's address (default: none).",
		"disturb_help": "With a database or broker outside: commands that make something else go wrong, such as one that kills and restarts the broker; " +
			"each takes its turn with the kills.",
	}
}

type versionCommand struct{}

// Run prints the version.
func (versionCommand) Run(s streams) error {
	_, err := fmt.Fprintln(s.out, "convergo", version())
	return err
}

// version is the module's version, or the commit that it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return "development"
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
