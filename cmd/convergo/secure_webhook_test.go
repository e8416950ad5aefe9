package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/webhook"
	"github.com/convergo/convergo/testserver"
)

const (
	endpointSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	otherSecret    = "whsec_Z3VhcmRpYW5zb2Z0aGVnYWxheHlhcmVoZXJl"
)

// secureEndpoint is a subscriber under TLS, with a certificate of the authority, that takes what is signed with its secret and acknowledges it.
func secureEndpoint(t *testing.T, p papers, change func(*tls.Config)) (url string) {
	t.Helper()
	secret := must[webhook.Secret](t)(webhook.ParseSecret(endpointSecret))
	receiver := must[*webhook.Receiver](t)(webhook.NewReceiver(webhook.ReceiverConfig{Secrets: []webhook.Secret{secret}}))
	s := httptest.NewUnstartedServer(receiver)
	s.Config.ErrorLog = nil
	s.TLS = &tls.Config{Certificates: []tls.Certificate{must[tls.Certificate](t)(tls.LoadX509KeyPair(p.cert, p.key))}, MinVersion: tls.VersionTLS12}
	change(s.TLS)
	s.StartTLS()
	t.Cleanup(s.Close)
	go func() {
		for {
			got, err := receiver.Fetch(t.Context(), 10)
			if err != nil {
				return
			}
			for _, d := range got {
				_ = d.Ack(t.Context()) // the sender is told, and tells the test
			}
		}
	}()
	return s.URL
}

// posted is what a publish to the endpoints of the file fails with.
func posted(t *testing.T, file string) error {
	t.Helper()
	b, err := connectBroker(t.Context(), "webhook:"+file, brokerOptions{log: discarded()})
	if err != nil {
		return err
	}
	defer func() { _ = b.close() }()
	return b.Publish(t.Context(), []convergo.Event{eventOf("O-1")})[0]
}

func TestAWebhookUnderAnAuthorityOfOnesOwnIsPostedOrSaysWhatToDo(t *testing.T) {
	t.Parallel()
	p := papersFor(t)
	url := secureEndpoint(t, p, func(*tls.Config) {})
	asking := secureEndpoint(t, p, func(c *tls.Config) { c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool() })
	file := func(url, secret, more string) string {
		return configOf(t, fmt.Sprintf("endpoints:\n  - {name: shop, url: %q, secrets: [%q]}\nallow: [127.0.0.0/8, \"::1/128\"]\n%s", url, secret, more))
	}
	trusting := "ca: " + p.ca + "\n"
	if err := posted(t, file(url, endpointSecret, trusting)); err != nil {
		t.Error(err)
	}
	bad := map[string]string{}
	for _, shown := range p.unfit(t) {
		pair := must[tls.Certificate](t)(tls.LoadX509KeyPair(shown.cert, shown.key))
		bad[shown.name] = secureEndpoint(t, p, func(c *tls.Config) { c.Certificates = []tls.Certificate{pair} })
	}
	empty := filepath.Join(t.TempDir(), "empty.pem")
	write(t, empty, "no certificate")
	for name, c := range map[string]struct{ url, secret, more, says string }{
		"an unknown authority": {url, endpointSecret, "", "name the file of its authority in that file, as ca"},
		"another authority":    {url, endpointSecret, "ca: " + p.strange + "\n", "name the file of its authority in that file, as ca"},
		"another host":         {strings.Replace(url, "127.0.0.1", "localhost", 1), endpointSecret, trusting, "write a name that it is for in its url"},
		"an expired certificate": {bad["expired"], endpointSecret, trusting, "the endpoint's certificate expired on " + expired() +
			", and https in its url takes none such: another one must be issued for it, or, if this machine's clock is wrong, set it right"},
		"a certificate for others": {bad["elsewhere"], endpointSecret, trusting,
			"the endpoint's certificate is for another host, elsewhere.test, 192.0.2.7 and not 127.0.0.1: write a name that it is for in its url"},
		"a client certificate":      {asking, endpointSecret, trusting, "asks for a client certificate, which is not sent"},
		"another secret":            {url, otherSecret, trusting, "does not accept the signature: let its secret be among the secrets of that file"},
		"no file of that name":      {url, endpointSecret, "ca: /nowhere\n", "ca: open /nowhere"},
		"a file with nothing in it": {url, endpointSecret, "ca: " + empty + "\n", "holds no certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			path := file(c.url, c.secret, c.more)
			err := posted(t, path)
			if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "broker webhook:"+path) {
				t.Errorf("%v, want %q", err, c.says)
			}
			if err != nil && strings.Contains(err.Error(), strings.TrimPrefix(c.secret, "whsec_")) {
				t.Errorf("the secret is shown: %v", err)
			}
		})
	}
}

// A relay that runs tells of a password that is changed meanwhile as it does at its start.
func TestAPasswordThatIsChangedMeanwhileIsToldWithTheAddress(t *testing.T) {
	t.Parallel()
	s := testserver.Own(t, testserver.OpenRedis)
	address := "redis://app:" + password + "@" + s.Addr
	admin := redisAt(t, s.Addr, "")
	admin("ACL", "SETUSER", "app", "on", ">"+password, "~*", "+@all")
	b := must[*connected](t)(connectBroker(t.Context(), address, brokerOptions{log: discarded()}))
	defer func() { _ = b.close() }()
	admin("ACL", "SETUSER", "app", "resetpass", ">"+wrongPassword)
	admin("CLIENT", "KILL", "USER", "app")
	err := b.Publish(t.Context(), []convergo.Event{eventOf("O-1")})[0]
	for _, words := range []string{"broker redis://app:xxxxx@" + s.Addr, "refuses USER:PASSWORD of the address", "WRONGPASS"} {
		if err == nil || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%v, want %q", err, words)
		}
	}
	if convergo.VerdictOf(err) != convergo.Outage {
		t.Errorf("%v spends attempts", err)
	}
}
