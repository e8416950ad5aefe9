package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/convergo/convergo"
)

// address is a URL that may name several hosts, separated by commas.
type address struct {
	url.URL          // Host is empty
	hosts   []string // with ports where they are given
}

// schemeOf is what an address begins with, "" when that is no scheme. PostgreSQL's own tools write postgresql: as well.
func schemeOf(text string) string {
	scheme, _, found := strings.Cut(text, ":")
	switch {
	case !found:
		return ""
	case scheme == "postgresql":
		return "postgres"
	}
	return scheme
}

// beginning is what an address begins with, for errors: a scheme, or one that is mistyped. Anything else may be a part of a password.
func beginning(text string) string {
	scheme, _, found := strings.Cut(text, ":")
	if !found || strings.ContainsFunc(scheme, func(r rune) bool { return (r < 'a' || r > 'z') && r != '+' }) {
		return "xxxxx"
	}
	return scheme + ":"
}

// parseAddress reads a URL such as kafka://user:password@one:9092,two:9092/?partitions=8. Its error shows no password.
func parseAddress(text string) (address, error) {
	scheme, rest, _ := strings.Cut(text, ":")
	begins := beginning(text)
	rest, found := strings.CutPrefix(rest, "//")
	var hosts string
	switch {
	case !found && scheme != "embedded" && scheme != "webhook": // what stands there would not be read as hosts
		return address{}, fmt.Errorf("a URL that begins with %q: behind that must stand '//'", begins)
	case found:
		end := strings.IndexAny(rest, "/?#")
		if end < 0 {
			end = len(rest)
		}
		at := strings.LastIndex(rest[:end], "@") + 1
		hosts = rest[at:end]
		if at == 0 && cutShort(hosts, rest[end:]) {
			return address{}, fmt.Errorf("a URL that begins with %q: the user or the password has a '/', '?' or '#' in it; write %%2F, %%3F or %%23", begins)
		}
		if at == 0 && !ports(hosts) {
			return address{}, fmt.Errorf("a URL that begins with %q: a port is a number; is the '@' and the host missing behind the password?", begins)
		}
		if path, _, _ := strings.Cut(rest[end:], "?"); at > 0 && strings.Contains(path, "@") {
			return address{}, fmt.Errorf("a URL that begins with %q: the password has an '@' in it, or a second '@' stands behind it; write %%40", begins)
		}
		if strings.Contains(rest, "#") { // nobody reads what stands behind it, and it may be the rest of a password
			return address{}, fmt.Errorf("a URL that begins with %q: there is a '#' in it; write %%23", begins)
		}
		text = schemeOf(text) + "://" + rest[:at] + rest[end:]
	}
	u, err := url.Parse(text)
	if err != nil {
		var wrong *url.Error
		if errors.As(err, &wrong) {
			err = wrong.Err // the URL itself, with its password, is not repeated
		}
		if escape := url.EscapeError(""); errors.As(err, &escape) { // a piece of it neither
			err = errors.New("a '%' is not followed by two hexadecimal digits; write %25")
		}
		return address{}, fmt.Errorf("a URL that begins with %q: %w", begins, err)
	}
	a := address{URL: *u}
	if hosts != "" {
		a.hosts = strings.Split(hosts, ",")
	}
	return a, nil
}

// cutShort tells whether what looks like a host is the beginning of an account, ended by a character that should have been escaped: it
// must neither be dialed nor be printed.
func cutShort(hosts, rest string) bool {
	path, _, _ := strings.Cut(rest, "?")
	if strings.Contains(path, "@") {
		return true
	}
	_, port, found := strings.Cut(hosts, ":")
	_, err := strconv.Atoi(port)
	return found && err != nil && !strings.ContainsAny(hosts, "[,") && strings.Contains(rest, "@")
}

// ports tells whether each of the hosts has a number as its port, or none: something else may be a password.
func ports(hosts string) bool {
	for host := range strings.SplitSeq(hosts, ",") {
		behind := host
		if strings.HasPrefix(host, "[") {
			_, behind, _ = strings.Cut(host, "]")
		}
		if _, port, found := strings.Cut(behind, ":"); found && port != "" {
			if _, err := strconv.ParseUint(port, 10, 16); err != nil {
				return false
			}
		}
	}
	return true
}

// redacted is an address without its secrets, for logs, errors and `convergo config`.
func redacted(text string) string {
	if !strings.Contains(text, "://") {
		scheme, _, _ := strings.Cut(text, ":")
		if !slices.Contains([]string{"sqlite", "webhook"}, scheme) && strings.ContainsAny(text, "@= ") {
			return "xxxxx" // a driver's user:password@tcp(host)/name, or libpq's password=…
		}
		return text
	}
	a, err := parseAddress(text)
	if err != nil || a.User == nil && strings.Contains(text, "@") { // what stands before the @ may be a password
		return strings.TrimSuffix(beginning(text), "xxxxx") + "xxxxx"
	}
	query, err := url.ParseQuery(a.RawQuery)
	if err != nil { // nobody knows what stands in it
		a.RawQuery = "xxxxx"
	}
	for name := range query {
		if !slices.Contains(shownParameters(), name) { // another one may be a password, or a mistyped name of one
			query.Set(name, "xxxxx")
			a.RawQuery = query.Encode()
		}
	}
	if _, password := a.User.Password(); a.User != nil && !password && slices.Contains([]string{"nats", "redis"}, a.Scheme) { // a token stands there
		a.User = url.User("xxxxx")
	}
	a.Host = strings.Join(a.hosts, ",")
	// {service} is for people to read.
	return strings.NewReplacer("%7B", "{", "%7D", "}").Replace(a.Redacted())
}

// strange is what is shown of an address that begins with no scheme that is known: USER:PASSWORD and HOST:PORT look alike.
func strange(text string) string {
	if strings.Contains(text, ":") && !strings.Contains(text, "://") {
		return "xxxxx"
	}
	return redacted(text)
}

// noAddress says of a setting that none of the schemes begins it.
func noAddress(setting, text string, schemes []string) error {
	return fmt.Errorf("%s %q does not begin with one of %s: write a URL, such as mysql://USER:PASSWORD@HOST:PORT/DATABASE, and not what a driver reads",
		setting, strange(text), strings.Join(schemes, ", "))
}

// noBroker says that no broker begins the address, and what is written instead of what other programs take.
func noBroker(text string) error {
	scheme, named := strings.CutSuffix(beginning(text), ":")
	if !named {
		return fmt.Errorf("--broker %q does not begin with one of %s: write a URL, such as nats://HOST", strange(text), strings.Join(brokerSchemes(), ", "))
	}
	instead := map[string]string{
		"amqps": "amqp://HOST?tls=true", "rediss": "redis://HOST?tls=true", "tls": "nats://HOST?tls=true", "rabbitmq": "amqp://HOST",
		"http": "webhook:FILE", "https": "webhook:FILE",
	}[scheme]
	if instead != "" {
		instead = "; write " + instead
	}
	return fmt.Errorf("--broker %q: there is no broker %q; there are %s%s", strange(text), scheme, strings.Join(brokerSchemes(), ", "), instead)
}

// shownParameters are those of which the value tells nothing that is secret.
func shownParameters() []string {
	return []string{
		"schema", "pool", "sslmode", "sslrootcert", "sslcert", "host", "port", "socket", "tls", "ca", "cert", "server_name", "stream", "prefix", "partitions",
		"replicas", "lease", "monitor", "db", "primary", "classic", "cluster", "sasl", "max_message",
	}
}

// account is the user and the password.
func (a address) account() (user, password string) {
	password, _ = a.User.Password()
	return a.User.Username(), password
}

// host is the first host, with the port if it names none.
func (a address) host(port string) string {
	if len(a.hosts) == 0 {
		return "127.0.0.1:" + port
	}
	return a.servers(port)[0]
}

// servers are all hosts, with the port where they name none.
func (a address) servers(port string) (all []string) {
	for _, host := range a.hosts {
		if strings.LastIndex(host, ":") <= strings.LastIndex(host, "]") {
			host += ":" + port
		}
		all = append(all, host)
	}
	return all
}

// query is an address's ?name=value&… It is read name by name; what nobody has read at the end is a mistake.
type query struct {
	values url.Values
	read   map[string]bool
	errs   []error
}

func queryOf(a address) (*query, error) {
	values, err := url.ParseQuery(a.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("behind the '?': %w; write %%3B for a ';' and %%25 for a '%%'", err)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if len(values[name]) > 1 {
			return nil, fmt.Errorf("?%s stands there %d times; which one is meant?", name, len(values[name]))
		}
	}
	return &query{values: values, read: map[string]bool{}}, nil
}

func (q *query) text(name string) string {
	q.read[name] = true
	return q.values.Get(name)
}

// file is the name of a file that can be read.
func (q *query) file(name string) string {
	path := q.text(name)
	if path == "" {
		return ""
	}
	f, err := os.Open(path)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		q.errs = append(q.errs, fmt.Errorf("?%s: %w", name, err))
	}
	return path
}

// count is a number of things, at least one where it is given; 0 when it is not.
func (q *query) count(name string) int {
	before := len(q.errs)
	n := q.number(name)
	if n == 0 && q.values.Has(name) && len(q.errs) == before {
		q.errs = append(q.errs, fmt.Errorf("?%s must be at least 1; without it the default holds", name))
	}
	return n
}

// partitions is how many parts a topic has.
func (q *query) partitions() int {
	n := q.count("partitions")
	if n > convergo.Lanes {
		q.errs = append(q.errs, fmt.Errorf("?partitions=%d: at most %d", n, convergo.Lanes))
	}
	return n
}

func (q *query) number(name string) int {
	text := q.text(name)
	if !q.values.Has(name) {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		q.errs = append(q.errs, fmt.Errorf("?%s is not a number", name))
	}
	return n
}

func (q *query) duration(name string) time.Duration {
	text := q.text(name)
	if !q.values.Has(name) {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		q.errs = append(q.errs, fmt.Errorf("?%s is not a duration such as 10s", name))
	}
	return d
}

func (q *query) flag(name string) bool {
	text := q.text(name)
	if !q.values.Has(name) {
		return false
	}
	on, err := strconv.ParseBool(text)
	if err != nil {
		q.errs = append(q.errs, fmt.Errorf("?%s is neither true nor false", name))
	}
	return on
}

func parseSubjects(texts []string) (all []convergo.Subject, err error) {
	for _, text := range texts {
		s, err := parseSubject(text)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// parseSubject reads "topic.Type", or "topic.*" for all types.
func parseSubject(text string) (convergo.Subject, error) {
	topic, eventType, ok := strings.Cut(text, ".")
	s := convergo.Subject{Topic: topic, Type: strings.TrimSuffix(eventType, "*")}
	if !ok {
		return s, fmt.Errorf("%q is neither topic.Type nor topic.*", text)
	}
	return s, s.Validate()
}

// tls reads ?tls=true, ?ca=FILE, ?cert=FILE&key=FILE and ?server_name=NAME; nil without any of them.
func (q *query) tls() *tls.Config {
	on, ca, cert, key, name := q.flag("tls"), q.text("ca"), q.text("cert"), q.text("key"), q.text("server_name")
	if !on && ca == "" && cert == "" && key == "" && name == "" {
		return nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			q.errs = append(q.errs, fmt.Errorf("?ca: %w", err))
		}
		cfg.RootCAs = x509.NewCertPool()
		if err == nil && !cfg.RootCAs.AppendCertsFromPEM(text) {
			q.errs = append(q.errs, fmt.Errorf("?ca=%s holds no certificate", ca))
		}
	}
	if cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			q.errs = append(q.errs, fmt.Errorf("?cert and ?key: %w", err))
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg
}

// end tells what was wrong, and what nobody has read.
func (q *query) end() error {
	for _, name := range slices.Sorted(maps.Keys(q.values)) {
		if !q.read[name] {
			q.errs = append(q.errs, fmt.Errorf("?%s is not understood; there are %s", name, strings.Join(slices.Sorted(maps.Keys(q.read)), ", ")))
		}
	}
	return errors.Join(q.errs...)
}

// checkListen tells whether a process could listen at the address, as far as it can be read.
func checkListen(flag, text string) error {
	_, port, err := net.SplitHostPort(text)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return fmt.Errorf("%s %q is not HOST:PORT, such as 127.0.0.1:8080, or :8080 for all addresses of the machine", flag, text)
	}
	return nil
}

// checkDatabase reads the address of a database as it is read to open it, and opens nothing.
func checkDatabase(text string) error {
	if strings.HasPrefix(text, "sqlite:") {
		return nil
	}
	a, err := parseAddress(text)
	switch {
	case err != nil:
	case a.Scheme == "postgres":
		_, _, _, err = postgresDSN(a)
	default:
		_, _, err = mysqlConfig(a)
	}
	return err
}
