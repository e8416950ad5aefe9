package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo/testserver"
)

// expiredSince is when what has expired did.
var expiredSince = time.Date(2020, 2, 29, 12, 0, 0, 0, time.UTC)

// expired is that time as it is told.
func expired() string { return "2020-02-29 12:00:00 UTC" }

func expire(c *x509.Certificate) {
	c.NotBefore, c.NotAfter = expiredSince.Add(-time.Hour), expiredSince
}

// elsewhere makes a certificate one for other hosts than those of the tests.
func elsewhere(c *x509.Certificate) {
	c.DNSNames, c.IPAddresses = []string{"elsewhere.test"}, []net.IP{net.IPv4(192, 0, 2, 7)}
}

const serverCertificate = "the server's certificate"

// identity is a certificate and its key.
type identity struct {
	name, cert, key string
	until           time.Time // when it expires
}

// issued is an identity by the authority that all trust.
func (p papers) issued(t *testing.T, name string, change func(*x509.Certificate)) identity {
	t.Helper()
	i := identity{name: name}
	var err error
	i.cert, i.key, err = p.authority.IssueAs(name, func(c *x509.Certificate) {
		change(c)
		i.until = c.NotAfter
	})
	testserver.Must(t, err)
	return i
}

// unfit are the identities of servers that no client may take for the one that it dialed.
func (p papers) unfit(t *testing.T) []identity {
	t.Helper()
	return []identity{p.issued(t, "expired", expire), p.issued(t, "elsewhere", elsewhere)}
}

// told are the words about a certificate that does not do: whose it is, what is wrong with it, by which parameters of the address it matters,
// and what to do.
func (i identity) told(whose, settings string) string {
	if i.name == "expired" {
		return fmt.Sprintf("%s expired on %s, and TLS (%s) takes none such: have another one issued for that server",
			whose, i.until.UTC().Format(time.DateTime+" UTC"), settings)
	}
	return whose + " is for another host, elsewhere.test, 192.0.2.7 and not 127.0.0.1: write a name that it is for as the host, or"
}

// expiring has a server take a certificate that expires soon, for one that takes none that has expired already. How soon that may be, for
// the server to have read it before, the machine decides.
func (p papers) expiring(t *testing.T, reread func() error) (shown identity) {
	t.Helper()
	err := errors.New("no try")
	for term := 4 * time.Second; err != nil && term <= 32*time.Second; term *= 2 {
		shown = p.issued(t, "expired", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(term) })
		p.replace(t, shown)
		err = reread()
	}
	testserver.Must(t, err)
	return shown
}

// replace has another certificate stand in the files of the server's, each of them at once: a server may look at them at any time.
func (p papers) replace(t *testing.T, shown identity) {
	t.Helper()
	testserver.Must(t, os.Rename(shown.cert, p.cert))
	testserver.Must(t, os.Rename(shown.key, p.key))
}

// stale shows a certificate of a client that has expired.
func (p papers) stale(t *testing.T) string {
	t.Helper()
	shown := p.issued(t, "stale", expire)
	return shows(p.ca, shown.cert, shown.key)
}

// formerly is what the authority's own certificate was until it expired.
func (p papers) formerly(t *testing.T) (file string) {
	t.Helper()
	return must[string](t)(p.authority.Formerly(expiredSince))
}

// awaitShown waits until a server that has been given another certificate shows it. Before TLS, greet says what the server wants to hear.
func awaitShown(t *testing.T, addr, certFile string, greet func(net.Conn) error) {
	t.Helper()
	want, _ := pem.Decode([]byte(textOf(t, certFile)))
	eventually(t, time.Minute, addr+" shows the certificate of "+certFile, func() (same bool) {
		conn, err := net.DialTimeout("tcp", addr, 10*time.Second)
		if err != nil {
			return false
		}
		defer func() { _ = conn.Close() }()
		if greet != nil && greet(conn) != nil {
			return false
		}
		client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, VerifyPeerCertificate: func(all [][]byte, _ [][]*x509.Certificate) error {
			same = bytes.Equal(all[0], want.Bytes)
			return nil
		}})
		_ = client.HandshakeContext(t.Context()) // it may want a certificate of ours: what it shows comes before
		return same
	})
}

// failureOfTLS is how a handshake fails, on the side of the client, whose clock is right.
func failureOfTLS(t *testing.T, server, client *tls.Config) error {
	t.Helper()
	listener := must[net.Listener](t)(tls.Listen("tcp", "127.0.0.1:0", server))
	defer func() { _ = listener.Close() }()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Read(make([]byte, 1)) // it makes the handshake, and fails with it
		_ = conn.Close()
	}()
	conn, err := tls.Dial("tcp", listener.Addr().String(), client)
	if err == nil {
		_, err = conn.Read(make([]byte, 1)) // what the server thinks of our certificate comes after the handshake
		err = errors.Join(err, conn.Close())
	}
	return err
}

func TestEachFaultOfACertificateIsNamedWithWhatToDo(t *testing.T) {
	t.Parallel()
	p := papersFor(t)
	issued := func(name string, change func(*x509.Certificate)) tls.Certificate {
		shown := p.issued(t, name, change)
		return must[tls.Certificate](t)(tls.LoadX509KeyPair(shown.cert, shown.key))
	}
	good, roots := issued(serverName, func(*x509.Certificate) {}), x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(textOf(t, p.ca)))
	past := x509.NewCertPool()
	past.AppendCertsFromPEM([]byte(textOf(t, p.formerly(t))))
	tomorrow := time.Now().Add(24 * time.Hour).Truncate(time.Second)
	nameless := func(c *x509.Certificate) { c.DNSNames, c.IPAddresses = nil, nil }
	many := func(c *x509.Certificate) {
		c.DNSNames, c.IPAddresses = []string{"a.test", "b.test", "c.test", "d.test"}, nil
	}
	unborn := func(c *x509.Certificate) { c.NotBefore, c.NotAfter = tomorrow, tomorrow.Add(time.Hour) }
	ownSigner := func(c *x509.Certificate) { // what `openssl req -x509` makes is an authority's too
		expire(c)
		c.IsCA, c.BasicConstraintsValid = true, true
	}
	clientsOnly := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }
	redis, ahead := "redis://h/?"+p.trusting(), time.Now().Add(48*time.Hour)
	for _, c := range []struct {
		address string
		shown   tls.Certificate
		trusted *x509.CertPool
		ours    string // what we show
		clock   time.Time
		words   string
	}{
		{redis, issued("unborn", unborn), roots, "", time.Time{}, "the server's certificate is not valid before " + tomorrow.UTC().Format(time.DateTime) +
			" UTC, and TLS (?ca) takes none such: have another one issued for that server, or, if this machine's clock is wrong, set it right"},
		{redis, issued("clients", clientsOnly), roots, "", time.Time{}, "is for other uses than to be a server's (extendedKeyUsage serverAuth), and TLS (?ca) takes none such: " +
			"have another one issued for that server"},
		{redis, issued("nameless", nameless), roots, "", time.Time{}, "the server's certificate names no host (subjectAltName): have one issued that names 127.0.0.1"},
		{"postgres://h/d?sslmode=verify-full", issued("nameless", nameless), roots, "", time.Time{}, "that names 127.0.0.1, or do not compare them, with ?sslmode=verify-ca"},
		{redis, issued("many", many), roots, "", time.Time{}, "is for another host, a.test, b.test, c.test, … and not 127.0.0.1: write"},
		{redis + "&server_name=x.test", issued("many", many), roots, "", time.Time{}, "as the host or in ?server_name"},
		{redis + "&primary=shop", issued("many", many), roots, "", time.Time{}, "the certificate of the server that the Sentinels name is for another host"},
		{redis, issued("own", ownSigner), roots, "", time.Time{}, "the server's certificate expired on " + expired() + ", and TLS (?ca) takes none such: have another one issued for that server"},
		{"webhook:FILE", issued("own", ownSigner), roots, "", time.Time{}, "the endpoint's certificate expired on " + expired() + ", and https in its url takes none such: another one must be issued for it"},
		{redis, good, past, "", time.Time{}, "the server's certificate is of the authority \"authority\", whose own expired on " + expired() +
			", and TLS (?ca) takes none such: name the file of its new one with ?ca=FILE"},
		{"webhook:FILE", good, past, "", time.Time{}, "is of the authority \"authority\", whose own expired on " + expired() +
			", and https in its url takes none such: name the file of its new one in that file, as ca"},
		{"webhook:FILE", issued("nameless", nameless), roots, "", time.Time{}, "one must be issued that names 127.0.0.1, the host of its url"},
		{"redis://h/?" + p.stale(t), good, roots, p.stale(t), time.Time{}, "the client certificate of ?cert expired on " + expired() + ": have another one issued"},
		{"redis://h/?" + p.showing(), good, roots, p.showing(), ahead, "the server takes the client certificate of ?cert for expired, and it is not: its authority's own may be, or else set the clocks right"},
		{"redis://h/?" + p.lying(), good, roots, p.lying(), time.Time{}, "name one that is signed by an authority that it trusts"},
	} {
		server := &tls.Config{Certificates: []tls.Certificate{c.shown}, ClientCAs: roots, MinVersion: tls.VersionTLS12}
		client := &tls.Config{RootCAs: c.trusted, MinVersion: tls.VersionTLS12}
		if c.ours != "" {
			a := must[address](t)(parseAddress("redis://h/?" + c.ours))
			client = must[*query](t)(queryOf(a)).tls()
			server.ClientAuth = tls.RequireAndVerifyClientCert
		}
		if !c.clock.IsZero() {
			server.Time = func() time.Time { return c.clock }
		}
		err := failureOfTLS(t, server, client)
		a := must[address](t)(parseAddress(c.address))
		if err == nil || !strings.Contains(a.unopened(err), c.words) {
			t.Errorf("%s: %v: %v\n wants %q", filepath.Base(c.address), err, advised(a.unopened(err), errors.New("it")), c.words)
		}
	}
}
