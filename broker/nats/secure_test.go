package nats_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/nats"
	"github.com/convergo/convergo/testlog"
)

// inProcess starts a server with these options inside the test, on a port of its own choice.
func inProcess(t *testing.T, options server.Options) *server.Server {
	t.Helper()
	options.Host, options.Port, options.JetStream, options.StoreDir, options.NoSigs, options.NoLog = "127.0.0.1", -1, true, t.TempDir(), true, true
	s, err := server.NewServer(&options)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not start")
	}
	return s
}

func file(t *testing.T, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// works publishes and fetches one event.
func works(t *testing.T, cfg nats.Config) {
	t.Helper()
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	publish(t, b, paid(fmt.Sprint("O-", names.Add(1)), 1))
	fetch(t, s, 1)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// refused checks that opening fails and that the error shows no secret.
func refused(t *testing.T, cfg nats.Config, secret string) {
	t.Helper()
	b, err := nats.Open(t.Context(), cfg)
	if err == nil {
		_ = b.Close()
		t.Fatal("opened with a wrong secret")
	}
	if strings.Contains(err.Error(), secret) {
		t.Errorf("the error shows the secret: %v", err)
	}
}

func TestAPasswordATokenAKeyAndCredentialsOpenTheDoorAndShowNowhere(t *testing.T) {
	t.Run("password", func(t *testing.T) {
		s := inProcess(t, server.Options{Username: "convergo", Password: "right"})
		works(t, nats.Config{URL: s.ClientURL(), User: "convergo", Password: "right"})
		works(t, nats.Config{URL: strings.Replace(s.ClientURL(), "://", "://convergo:right@", 1)})
		refused(t, nats.Config{URL: strings.Replace(s.ClientURL(), "://", "://convergo:wrong-secret@", 1)}, "wrong-secret")
		refused(t, nats.Config{URL: "nats://convergo:wrong-secret@host:port:x"}, "wrong-secret")
	})
	t.Run("no more rights than the package asks for", func(t *testing.T) {
		s := inProcess(t, server.Options{Users: []*server.User{{Username: "convergo", Password: "right", Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: []string{"ev.>", "$JS.API.>", "$KV.CONVERGO-consumers.>", "convergo.>"}},
			Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>", "convergo.>"}},
		}}}})
		var complaints testlog.Lines
		works(t, nats.Config{
			URL: s.ClientURL(), User: "convergo", Password: "right", Log: slog.New(slog.NewTextHandler(&complaints, nil)), // warnings and more
		})
		if strings.Contains(strings.ToLower(complaints.String()), "permission") {
			t.Error(complaints.String())
		}
	})
	t.Run("token", func(t *testing.T) {
		s := inProcess(t, server.Options{Authorization: "right-token"})
		works(t, nats.Config{URL: s.ClientURL(), Token: "right-token"})
		refused(t, nats.Config{URL: s.ClientURL(), Token: "wrong-token"}, "wrong-token")
	})
	t.Run("key", func(t *testing.T) {
		user := must[nkeys.KeyPair](t)(nkeys.CreateUser())
		public := must[string](t)(user.PublicKey())
		seed := must[[]byte](t)(user.Seed())
		s := inProcess(t, server.Options{Nkeys: []*server.NkeyUser{{Nkey: public}}})
		works(t, nats.Config{URL: s.ClientURL(), NKeyFile: file(t, seed)})
		other := must[nkeys.KeyPair](t)(nkeys.CreateUser())
		wrong := must[[]byte](t)(other.Seed())
		refused(t, nats.Config{URL: s.ClientURL(), NKeyFile: file(t, wrong)}, string(wrong))
	})
	t.Run("credentials", func(t *testing.T) {
		operator, account, user := must[nkeys.KeyPair](t)(nkeys.CreateOperator()), must[nkeys.KeyPair](t)(nkeys.CreateAccount()), must[nkeys.KeyPair](t)(nkeys.CreateUser())
		public := func(k nkeys.KeyPair) string { return must[string](t)(k.PublicKey()) }
		trusted := jwt.NewOperatorClaims(public(operator))
		claims := jwt.NewAccountClaims(public(account))
		claims.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: -1, MemoryStorage: -1, Streams: -1, Consumer: -1}
		system := must[nkeys.KeyPair](t)(nkeys.CreateAccount())
		resolver := &server.MemAccResolver{}
		for _, c := range []*jwt.AccountClaims{claims, jwt.NewAccountClaims(public(system))} {
			if err := resolver.Store(c.Subject, must[string](t)(c.Encode(operator))); err != nil {
				t.Fatal(err)
			}
		}
		s := inProcess(t, server.Options{
			TrustedOperators: []*jwt.OperatorClaims{trusted}, AccountResolver: resolver, SystemAccount: public(system),
		})
		token := must[string](t)(jwt.NewUserClaims(public(user)).Encode(account))
		creds := must[[]byte](t)(jwt.FormatUserConfig(token, must[[]byte](t)(user.Seed())))
		works(t, nats.Config{URL: s.ClientURL(), CredentialsFile: file(t, creds)})
		refused(t, nats.Config{URL: s.ClientURL(), Token: "wrong-token"}, "wrong-token")
	})
}

func TestTLSIsSpokenAndAServerOfUnknownOriginRefused(t *testing.T) {
	key := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der := must[[]byte](t)(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))
	s := inProcess(t, server.Options{
		TLS: true, TLSTimeout: 5, TLSConfig: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12},
	})
	roots := x509.NewCertPool()
	roots.AddCert(must[*x509.Certificate](t)(x509.ParseCertificate(der)))
	works(t, nats.Config{URL: s.ClientURL(), TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}})
	b, err := nats.Open(t.Context(), nats.Config{URL: s.ClientURL()})
	if err == nil {
		_ = b.Close()
	}
	var unknown x509.UnknownAuthorityError
	if !errors.As(err, &unknown) {
		t.Errorf("error %v, want an unknown authority", err)
	}
}

func TestAServersSmallerLimitRefusesForGoodWithBothSizes(t *testing.T) {
	s := inProcess(t, server.Options{MaxPayload: 100_000})
	b := open(t, nats.Config{URL: s.ClientURL()})
	large := paid("O-1", 1)
	large.Payload = make([]byte, 100_000)
	err := b.Publish(t.Context(), []convergo.Event{large})[0]
	if convergo.VerdictOf(err) != convergo.Park || !strings.Contains(err.Error(), "> 100000 bytes") || !strings.Contains(err.Error(), "100") {
		t.Errorf("error %v", err)
	}
	// The size that the client reckons is the one that the server counts: at the limit, and one beyond it.
	most := paid("O-2", 1)
	var size, limit int
	if _, scan := fmt.Sscanf(err.Error()[strings.LastIndex(err.Error(), ": ")+2:], "%d > %d bytes", &size, &limit); scan != nil {
		t.Fatal(scan)
	}
	most.Payload = make([]byte, len(large.Payload)-(size-limit))
	publish(t, b, most)
	most.Payload = append(most.Payload, 0)
	if err := b.Publish(t.Context(), []convergo.Event{most})[0]; convergo.VerdictOf(err) != convergo.Park {
		t.Errorf("one byte more: %v", err)
	}
	warnings, err := b.Check(t.Context())
	if err != nil || !strings.Contains(fmt.Sprint(warnings), "max_payload") {
		t.Errorf("%v, %v", warnings, err)
	}
}
