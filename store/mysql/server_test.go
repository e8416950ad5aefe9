package mysql_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/store/storetest"
	"github.com/convergo/convergo/testserver"
)

// Every commit that was confirmed is there after a SIGKILL of the server; what cannot be confirmed is an outage, and nobody's fault.
func TestAKilledServerLosesNoConfirmedCommitAndTheStoreGoesOn(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			server := testserver.Own(t, k.open)
			s := open(t, fresh(t, server), mysql.Options{})
			var confirmed sync.Map
			var n atomic.Int64
			var writers sync.WaitGroup
			for w := range 4 {
				writers.Go(func() {
					for i := 1; ; i++ {
						e := event(fmt.Sprint(w), i)
						if err := insert(t.Context(), s, e); err != nil {
							if convergo.VerdictOf(err) != convergo.Outage {
								t.Errorf("the error of a server that is gone is no outage: %v", err)
							}
							return
						}
						confirmed.Store(e.Key, true)
						n.Add(1)
					}
				})
			}
			deadline := time.Now().Add(20 * time.Second)
			for n.Load() < 100 && time.Now().Before(deadline) {
				<-time.After(5 * time.Millisecond)
			}
			must(t, server.Kill())
			writers.Wait()
			if err := insert(t.Context(), s, event("while it is down", 1)); convergo.VerdictOf(err) != convergo.Outage {
				t.Errorf("Update on a server that is down: %v", err)
			}
			must(t, server.Restart())
			must(t, insert(t.Context(), s, event("after", 1)))
			c, err := s.Claim(t.Context(), lease(t, s, "r"), 100_000, time.Now())
			must(t, err)
			there := map[convergo.Key]bool{}
			for _, p := range c.Events {
				there[p.Event.Key] = true
			}
			confirmed.Range(func(key, _ any) bool {
				if !there[key.(convergo.Key)] {
					t.Errorf("%s was confirmed and is lost", key)
				}
				return true
			})
			if n.Load() < 100 {
				t.Errorf("only %d commits before the kill", n.Load())
			}
		})
	}
}

func TestTLSIsAskedForAndVerified(t *testing.T) {
	for i, k := range []func(...string) func() (*testserver.MySQL, error){testserver.OpenMariaDBWith, testserver.OpenMySQLWith} {
		t.Run(kinds[i].name, func(t *testing.T) {
			roots, options := certificate(t)
			server := testserver.Own(t, k(options...))
			name, err := server.Database()
			must(t, err)
			must(t, server.Exec("CREATE USER 'sealed'@'%' IDENTIFIED BY 'hunter2' REQUIRE SSL", "GRANT ALL ON *.* TO 'sealed'@'%'"))
			dsn := "sealed:hunter2@tcp(" + server.Addr + ")/" + name
			if _, err := mysql.Open(t.Context(), dsn+"?tls=false", mysql.Options{}); err == nil {
				t.Error("a user who needs TLS comes in without")
			}
			s := open(t, dsn, mysql.Options{TLS: &tls.Config{RootCAs: roots}})
			var variable, cipher string
			must(t, s.View(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
				return tx.QueryRowContext(ctx, "SHOW SESSION STATUS LIKE 'Ssl_cipher'").Scan(&variable, &cipher)
			}))
			if cipher == "" {
				t.Error("the connection is in the clear")
			}
			_, err = mysql.Open(t.Context(), dsn, mysql.Options{TLS: &tls.Config{RootCAs: x509.NewCertPool()}})
			if err == nil || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("a certificate of nobody's: %v", err)
			}
		})
	}
}

// certificate writes a server's certificate for 127.0.0.1 into files; options name them.
func certificate(t *testing.T) (roots *x509.CertPool, options []string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	dir := t.TempDir()
	for name, block := range map[string]*pem.Block{"cert": {Type: "CERTIFICATE", Bytes: der}, "key": {Type: "PRIVATE KEY", Bytes: private}} {
		must(t, os.WriteFile(filepath.Join(dir, name+".pem"), pem.EncodeToMemory(block), 0o600))
	}
	roots = x509.NewCertPool()
	parsed, err := x509.ParseCertificate(der)
	must(t, err)
	roots.AddCert(parsed)
	return roots, []string{"--ssl-cert=" + filepath.Join(dir, "cert.pem"), "--ssl-key=" + filepath.Join(dir, "key.pem"), "--ssl-ca=" + filepath.Join(dir, "cert.pem")}
}

// A server whose process is stopped keeps its connections and says nothing.
func TestAServerThatStandsStillHangsNobody(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			server := testserver.Own(t, k.open)
			dsn := fresh(t, server)
			_, err := raw(t, dsn).ExecContext(t.Context(), "CREATE TABLE law_number (name VARCHAR(50) PRIMARY KEY, n BIGINT NOT NULL)")
			must(t, err)
			var next atomic.Pointer[func()]
			opts := mysql.Options{Name: "hung", CommitTimeout: 1500 * time.Millisecond, Probe: func(at string) {
				if at == "hung.commit.before" {
					if f := next.Swap(nil); f != nil {
						(*f)()
					}
				}
			}}
			storetest.RunHung(t, backend(t, dsn, opts), storetest.HungServer{
				Pause: server.Pause, Resume: server.Resume, AtCommit: func(f func()) { next.Store(&f) }, Commit: opts.CommitTimeout,
			})
		})
	}
}
