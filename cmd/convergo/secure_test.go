package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/testserver"
)

// The passwords of these tests, which no error may show: the right one is `password`.
const wrongPassword = "hunter3"

// papers are the certificates that servers and clients show, and the files of those who signed them.
type papers struct {
	dir                           string
	ca, cert, key                 string // of the authority that all trust, and of the server
	clientCert, clientKey         string
	strange, strangeCert, keyOfIt string // an authority that signed nothing else, and a client of its
	authority                     *testserver.Authority
}

func papersFor(t *testing.T) papers {
	t.Helper()
	dir := must[string](t)(testserver.Folder("papers"))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	authority := must[*testserver.Authority](t)(testserver.NewAuthority(dir, "authority"))
	strange := must[*testserver.Authority](t)(testserver.NewAuthority(dir, "strange"))
	p := papers{dir: dir, ca: authority.File, strange: strange.File, authority: authority}
	for _, issue := range []struct {
		by        *testserver.Authority
		name      string
		cert, key *string
	}{{authority, serverName, &p.cert, &p.key}, {authority, clientName, &p.clientCert, &p.clientKey}, {strange, "stranger", &p.strangeCert, &p.keyOfIt}} {
		var err error
		if *issue.cert, *issue.key, err = issue.by.Issue(issue.name); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

const (
	serverName = "server.test" // the host in the server's certificate, beside 127.0.0.1
	clientName = "certified"
)

// Parts of an address behind its '?'.
func (p papers) trusting() string { return "ca=" + p.ca }
func (p papers) showing() string  { return shows(p.ca, p.clientCert, p.clientKey) }
func (p papers) lying() string    { return shows(p.ca, p.strangeCert, p.keyOfIt) }

func shows(ca, cert, key string) string { return fmt.Sprintf("ca=%s&cert=%s&key=%s", ca, cert, key) }

// door is a server's: addresses that let us in, and addresses that do not, with what is said about each.
type door struct {
	opens  []string
	closed map[string]string
}

// ofBroker has an event go through each address that opens, and relay and doctor say of the others what to do.
func (d door) ofBroker(t *testing.T) {
	t.Helper()
	d.usesAll(t)
	for i, address := range d.opens {
		t.Run(fmt.Sprint("opens ", i), func(t *testing.T) { passes(t, address) })
	}
	for address, says := range d.closed {
		t.Run("refuses", func(t *testing.T) { toldOfBroker(t, address, says) })
	}
}

// toldOfBroker checks what relay and doctor say of the address of a broker.
func toldOfBroker(t *testing.T, address, words string) {
	t.Helper()
	isRefused(t, address, words, "broker",
		[]string{"relay", "--database", "sqlite:" + filepath.Join(t.TempDir(), "shop.db"), "--addr", "127.0.0.1:0", "--broker", address},
		[]string{"--services", "order", "--broker", address})
}

// ofDatabase has each address that opens make its tables, and relay and doctor say of the others what to do.
func (d door) ofDatabase(t *testing.T) {
	t.Helper()
	d.usesAll(t)
	for i, address := range d.opens {
		t.Run(fmt.Sprint("opens ", i), func(t *testing.T) {
			order := []string{"--services", "order", "--databases", "order=" + address}
			dir := t.TempDir()
			startPlatform(t, dir, order...).end(0)
			order = append(order, "--secrets", filepath.Join(dir, secretsFile))
			says(t, findings(t, 0, order...), "database of order", levelOK, "its tables are those of this version")
		})
	}
	for address, says := range d.closed {
		t.Run("refuses", func(t *testing.T) {
			toldOfDatabase(t, address, says)
		})
	}
}

// toldOfDatabase checks what relay and doctor say of the address of a database.
func toldOfDatabase(t *testing.T, address, words string) {
	t.Helper()
	isRefused(t, address, words, "database of order", []string{"relay", "--database", address, "--broker", "redis://127.0.0.1:1"},
		[]string{"--services", "order", "--databases", "order=" + address})
}

// saysAlone fails when a client of a server writes to standard error beside the program.
func saysAlone(t *testing.T, args ...string) {
	t.Helper()
	_ = programFile(t) // it may have to be built
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r := runChild(ctx, t, args...)
	if lines := strings.Split(strings.TrimSpace(r.err), "\n"); r.code != 1 || len(lines) != 1 || !strings.HasPrefix(lines[0], "convergo: ") {
		t.Errorf("%d: %s", r.code, r.err)
	}
}

// isRefused checks what a command that needs the address says, and what the doctor says of it.
func isRefused(t *testing.T, address, words, subject string, command, doctor []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r := runProgram(ctx, command...)
	said := r.out.String() + r.err.String()
	last := said[strings.LastIndex(strings.TrimSpace("\n"+said), "\n")+1:]
	if r.code != 1 || !strings.Contains(last, redacted(address)) || !strings.Contains(last, words) {
		t.Errorf("%s: %d: %s\n wants %q", redacted(address), r.code, said, words)
	}
	found := findings(t, 1, doctor...)
	if _, wrong := found[subject]; !wrong {
		subject = "settings" // it was found when the address was read
	}
	says(t, found, subject, levelError, words)
	said += fmt.Sprint(found)
	for _, secret := range secretsOf(address) {
		if strings.Contains(said, secret) {
			t.Errorf("%s: %q is shown: %s", redacted(address), secret, said)
		}
	}
}

// secretsOf are the parts of an address that nobody may see.
func secretsOf(address string) (all []string) {
	all = []string{password, wrongPassword}
	if a, err := parseAddress(address); err == nil && a.User != nil {
		if _, secret := a.account(); secret != "" {
			all = append(all, secret)
		}
	}
	return all
}

// usesAll fails when a parameter that the program understands is in none of the addresses that open, or not in the documentation.
func (d door) usesAll(t *testing.T) {
	t.Helper()
	scheme := schemeOf(d.opens[0])
	names := []string{"schema", "pool", "sslmode", "sslrootcert", "sslcert", "sslkey"} // PostgreSQL's driver takes many more
	if scheme != "postgres" {
		names = parametersOf(t, scheme)
	}
	documented := textOf(t, "../../docs/reference/cli.md")
	for _, name := range names {
		if !slices.ContainsFunc(d.opens, func(address string) bool {
			return must[url.Values](t)(url.ParseQuery(address[strings.Index(address, "?")+1:])).Has(name)
		}) {
			t.Errorf("no test opens an address of %s with ?%s", scheme, name)
		}
		if !regexp.MustCompile("[`&?]" + name + "[=`]").MatchString(documented) {
			t.Errorf("?%s of %s is not in docs/reference/cli.md", name, scheme)
		}
	}
}

// parametersOf are the parameters of a scheme, as it tells them to who writes another one.
func parametersOf(t *testing.T, scheme string) []string {
	t.Helper()
	address := scheme + "://127.0.0.1/d?nonsense=1"
	_, err := connectBroker(t.Context(), address, brokerOptions{read: true})
	if scheme == "mysql" {
		err = checkDatabase(address)
	}
	if err == nil {
		t.Fatal("?nonsense is understood")
	}
	_, names, _ := strings.Cut(err.Error(), "there are ")
	return strings.Split(names, ", ")
}

// passes sends an event through the broker at the address and fetches it.
func passes(t *testing.T, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	b := must[*connected](t)(connectBroker(ctx, address, brokerOptions{maxAge: time.Hour, log: discarded()}))
	defer func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	}()
	source := must[inbox.Source](t)(b.Subscribe(ctx, "payment", []convergo.Subject{{Topic: "order", Type: "OrderPaid"}}))
	event := eventOf(t.Name())
	if err := errors.Join(b.Publish(ctx, []convergo.Event{event})...); err != nil {
		t.Fatal(err)
	}
	for {
		got, err := source.Fetch(ctx, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range got {
			if err := d.Ack(ctx); err != nil {
				t.Error(err)
			}
			if d.Event.Key == event.Key {
				return
			}
		}
	}
}

func eventOf(order string) convergo.Event {
	return convergo.Event{
		MessageID: "m-1", Key: convergo.KeyFor("OrderPaid", order, 1), Topic: "order", Type: "OrderPaid",
		Aggregate: convergo.Aggregate{Type: "order", ID: order}, Version: 1, Payload: []byte("{}"), CreatedAt: time.Now(),
	}
}
