package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// backends are where a platform keeps its data and through what it speaks. Each flag is also an environment variable,
// CONVERGO_…, and a key of the configuration file. A flag beats the environment, the environment beats the file.
type backends struct {
	Config    kong.ConfigFlag   `type:"path" placeholder:"FILE" help:"Configuration file: YAML, its keys are the flags."`
	Database  string            `placeholder:"URL" help:"${database_help}"`
	Databases map[string]string `placeholder:"SERVICE=URL" help:"Databases of single services, before --database."`
	Broker    string            `placeholder:"URL" help:"${broker_help}"`
}

// databaseURL is where the service's data is; dir is the data folder.
func (b backends) databaseURL(dir, service string) string {
	address := b.Databases[service]
	if address == "" {
		address = b.Database
	}
	if address == "" {
		address = "sqlite:" + filepath.Join(dir, "{service}.db")
	}
	return strings.ReplaceAll(address, "{service}", service)
}

// databaseSetting is the setting that databaseURL comes from.
func (b backends) databaseSetting(service string) string {
	if b.Databases[service] != "" {
		return "--databases of " + service
	}
	return "--database"
}

// brokerURL is the broker's address, "embedded:" when nothing is set up.
func (b backends) brokerURL() string {
	if b.Broker == "" {
		return "embedded:"
	}
	return b.Broker
}

// embedded tells whether the broker is inside this process.
func (b backends) embedded() bool { return strings.HasPrefix(b.brokerURL(), "embedded:") }

func (b backends) validate() error {
	for service := range b.Databases {
		if !slices.Contains(serviceNames(), service) {
			if !regexp.MustCompile("^[a-z]{1,20}$").MatchString(service) { // it may be a piece of a password
				service = "xxxxx"
			}
			return fmt.Errorf("--databases: there is no service %q; there are %s", service, strings.Join(serviceNames(), ", "))
		}
	}
	for _, service := range serviceNames() {
		address := b.databaseURL("", service)
		if !slices.Contains(databaseSchemes(), schemeOf(address)) {
			return noAddress("--database", address, databaseSchemes())
		}
	}
	if one := b.Database; one != "" && !strings.Contains(one, "{service}") && len(b.Databases) < len(serviceNames())-1 {
		return fmt.Errorf("--database %q is one database for all services; let {service} stand where its name goes, "+
			"for example ?schema={service} (PostgreSQL) or /convergo_{service} (MySQL)", redacted(one))
	}
	if strings.HasPrefix(b.Broker, "webhook:") {
		return errors.New("--broker webhook: only sends, to others; services need a broker that they can subscribe to")
	}
	if !slices.Contains(brokerSchemes(), schemeOf(b.brokerURL())) {
		return noBroker(b.Broker)
	}
	return nil
}

// configFile is the settings of a file. It is strict: a key that no command knows is a mistake that somebody must hear of.
type configFile struct {
	name string // of the file
	keys map[string]any
}

// loadConfig reads a configuration file; kong calls it for --config.
func loadConfig(r io.Reader) (kong.Resolver, error) {
	c := configFile{name: "the configuration file"}
	if file, ok := r.(interface{ Name() string }); ok {
		c.name += " " + file.Name()
	}
	text, err := io.ReadAll(io.LimitReader(r, mostConfig+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	if len(text) > mostConfig {
		return nil, fmt.Errorf("%s is larger than %d KiB", c.name, mostConfig>>10)
	}
	var whole yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&whole); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s is not valid: %w", c.name, err)
	}
	if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s has a second document: settings are one", c.name)
	}
	c.keys = map[string]any{} // nested maps are of this type too
	if len(whole.Content) == 1 && whole.Content[0].Kind != yaml.MappingNode && whole.Content[0].Tag != "!!null" {
		return nil, fmt.Errorf("%s has no settings: each is a line KEY: VALUE", c.name)
	}
	if err := whole.Decode(&c.keys); err != nil && len(whole.Content) > 0 {
		return nil, fmt.Errorf("%s is not valid: %w", c.name, err)
	}
	for key, value := range c.keys {
		if c.keys[key], err = fromEnvironment(value); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", c.name, key, err)
		}
	}
	return c, nil
}

// fromEnvironment replaces ${NAME} by the environment's value: a password need not stand in the file.
func fromEnvironment(value any) (any, error) {
	var err error
	switch v := value.(type) {
	case string:
		return regexp.MustCompile(`\$\{[A-Za-z_][A-Za-z0-9_]*\}`).ReplaceAllStringFunc(v, func(name string) string {
			found, ok := os.LookupEnv(name[2 : len(name)-1])
			if !ok {
				err = fmt.Errorf("%s is not in the environment", name)
			}
			return found
		}), err
	case []any:
		for i := range v {
			if v[i], err = fromEnvironment(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for key := range v {
			if v[key], err = fromEnvironment(v[key]); err != nil {
				return nil, err
			}
		}
	}
	return value, nil
}

// Validate refuses keys that are no flags.
func (c configFile) Validate(app *kong.Application) error {
	known := map[string]bool{}
	for _, f := range settingsOf(app) {
		known[f.Name] = f.Name != "config"
	}
	for _, key := range slices.Sorted(maps.Keys(c.keys)) {
		if !known[key] {
			return fmt.Errorf("%s has a key %q, which is no setting%s: keys are the flags of `convergo serve --help` without dashes",
				c.name, key, meant(key, slices.Sorted(maps.Keys(known))))
		}
	}
	return nil
}

// settingsOf are the flags of all commands that have a variable and a key.
func settingsOf(app *kong.Application) (all []*kong.Flag) {
	_ = kong.Visit(app, func(node kong.Visitable, next kong.Next) error { // the visitor has no errors
		if f, ok := node.(*kong.Flag); ok && isSetting(f) {
			all = append(all, f)
		}
		return next(nil)
	})
	return all
}

// isSetting: a flag without a variable chooses what a command is to do now. It is never found in a file.
func isSetting(f *kong.Flag) bool { return len(f.Envs) > 0 }

// Resolve gives kong the file's value of a flag that the environment does not set: to kong the environment is a default.
func (c configFile) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if !isSetting(flag) {
		return nil, nil
	}
	for _, name := range flag.Envs {
		if _, ok := os.LookupEnv(name); ok {
			return nil, nil
		}
	}
	if slices.Contains(flag.Envs, "CONVERGO_WORLD_FILE") {
		return nil, nil // the file's "world" is the URL that serve wants
	}
	value := c.keys[flag.Name]
	if want := wanted(flag.Target.Kind()); value != nil && !want.fits(value) { // kong would show the value, and it may be a password
		return nil, fmt.Errorf("%s: %s wants %s", c.name, flag.Name, want.name)
	}
	switch v := value.(type) {
	case nil, []any, map[string]any:
		return v, nil
	default:
		return fmt.Sprint(v), nil
	}
}

// namedTexts reads NAME=TEXT;NAME=TEXT, or a map of the configuration file. kong's own reading would show what stands behind a ';', and
// that may be half of a password.
func namedTexts(ctx *kong.DecodeContext, target reflect.Value) error {
	all := map[string]string{}
	switch v := ctx.Scan.Pop().Value.(type) {
	case string:
		for i, part := range kong.SplitEscaped(v, ctx.Value.Tag.MapSep) {
			name, text, found := strings.Cut(part, "=")
			if !found {
				return fmt.Errorf("part %d of NAME=VALUE;NAME=VALUE has no '='; a ';' inside a value is written \\;, and inside an address also %%3B", i+1)
			}
			if _, twice := all[name]; twice {
				return fmt.Errorf("part %d of NAME=VALUE;NAME=VALUE has the name of an earlier one", i+1)
			}
			all[name] = text
		}
	case map[string]any:
		for name, text := range v {
			all[name] = fmt.Sprint(text)
		}
	default:
		return errors.New("want NAME=VALUE;NAME=VALUE")
	}
	if target.IsNil() {
		target.Set(reflect.ValueOf(all))
		return nil
	}
	for name, text := range all { // the flag may be given several times
		target.SetMapIndex(reflect.ValueOf(name), reflect.ValueOf(text))
	}
	return nil
}

// shape is what a setting looks like in a file.
type shape struct {
	name string
	fits func(value any) bool
}

// wanted is the shape of a flag of that kind.
func wanted(kind reflect.Kind) shape {
	plain := func(v any) bool {
		switch v.(type) {
		case []any, map[string]any, nil:
			return false
		}
		return true
	}
	switch kind {
	case reflect.Map:
		return shape{"one text for each name, such as {order: TEXT}", func(v any) bool {
			m, ok := v.(map[string]any)
			for _, value := range m {
				ok = ok && plain(value)
			}
			return ok
		}}
	case reflect.Slice:
		return shape{"a list of texts, such as [a, b]", func(v any) bool {
			list, ok := v.([]any)
			for _, value := range list {
				ok = ok && plain(value)
			}
			return ok || plain(v)
		}}
	default:
		return shape{"one value", plain}
	}
}

// mostConfig is how large a configuration file can be, in bytes.
const mostConfig = 1 << 20

// configCommand is `convergo config`: what `convergo serve` would run with.
type configCommand struct {
	serveCommand
}

// Run prints the settings as a configuration file.
func (c configCommand) Run(_ context.Context, s streams) error {
	if err := c.validate(); err != nil {
		return misuse(err)
	}
	var lines []string
	for name, value := range settings(reflect.ValueOf(c.serveCommand)) {
		text, err := yaml.Marshal(map[string]any{name: value})
		if err != nil {
			return err
		}
		lines = append(lines, string(text))
	}
	slices.Sort(lines)
	_, err := io.WriteString(s.out, strings.Join(lines, ""))
	return err
}

// settings are the values of a command's flags by name, secrets hidden.
func settings(command reflect.Value) map[string]any {
	all := map[string]any{}
	for i := range command.NumField() {
		field, value := command.Type().Field(i), command.Field(i)
		if field.Anonymous {
			for name, inner := range settings(value) {
				all[name] = inner
			}
			continue
		}
		switch v := value.Interface().(type) {
		case kong.ConfigFlag: // where they come from is none of them
		case time.Duration:
			all[flagName(field.Name)] = v.String()
		case string:
			if v != "" { // an empty path would be read as this folder
				all[flagName(field.Name)] = redacted(v)
			}
		case map[string]string:
			if len(v) == 0 {
				continue
			}
			shown := map[string]string{}
			for key, address := range v {
				shown[key] = redacted(address)
			}
			all[flagName(field.Name)] = shown
		default:
			all[flagName(field.Name)] = v
		}
	}
	return all
}

// flagName is a field's name as kong spells it: PaymentWindow is payment-window.
func flagName(field string) string {
	var b strings.Builder
	for i, r := range field {
		upper := r >= 'A' && r <= 'Z'
		if upper && i > 0 && (field[i-1] < 'A' || field[i-1] > 'Z') {
			b.WriteByte('-')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}
