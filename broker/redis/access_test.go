package redis

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/internal/freeport"
	"github.com/convergo/convergo/testserver"
)

// certificate writes a certificate for 127.0.0.1 and its key into files, and returns what trusts it.
func certificate(t *testing.T) (cert, key string, trust *tls.Config) {
	t.Helper()
	web := httptest.NewTLSServer(nil)
	defer web.Close()
	pair := web.TLS.Certificates[0]
	secret, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{
		cert: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, key: {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	trust = &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	trust.RootCAs.AddCert(web.Certificate())
	return cert, key, trust
}

func TestTLSAndAUserOfTheAccessList(t *testing.T) {
	cert, key, trust := certificate(t)
	port, err := freeport.Next()
	if err != nil {
		t.Fatal(err)
	}
	server := testserver.Own(t, testserver.OpenRedisWith("--tls-port", fmt.Sprint(port), "--tls-cert-file", cert, "--tls-key-file", key,
		"--tls-auth-clients", "no"))
	const password = "wonderfully-secret"
	admin := open(t, settings(server))
	// What the package documents: streams and scripts, its own keys only, no administration.
	err = admin.client.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">"+password, "~app:*", "+@all", "-@admin", "-@dangerous", "+info").Err()
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Addr: fmt.Sprint("127.0.0.1:", port), TLS: trust, User: "app", Password: password, Prefix: "app", Timeout: 2 * time.Second}
	b := open(t, cfg)
	publish(t, b, event("O-1", 1))
	s := subscribe(t, b, "payment")
	ack(t, fetch(t, s, 1)...)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	found, err := b.Check(t.Context())
	if err != nil || !strings.Contains(fmt.Sprint(found), "CONFIG GET is not allowed") {
		t.Errorf("check: %v, %v", found, err)
	}

	wrong := cfg
	wrong.Password = password + "-not"
	untrusted := cfg
	untrusted.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	for name, cfg := range map[string]Config{"wrong password": wrong, "untrusted certificate": untrusted} {
		_, err := Open(t.Context(), cfg)
		if err == nil || convergo.VerdictOf(err) != convergo.Outage || strings.Contains(err.Error(), password) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
