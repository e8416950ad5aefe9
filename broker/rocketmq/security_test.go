package rocketmq

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/testserver"
)

// certificate makes a self-signed one for 127.0.0.1, and writes it and its key to files.
func certificate(t *testing.T) (pool *x509.CertPool, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "rocketmq"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyBytes, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "server.pem"), filepath.Join(dir, "server.key")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: keyBytes}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return pool, certFile, keyFile
}

func TestServersThatWantTLSAndASignatureGetBoth(t *testing.T) {
	t.Parallel()
	pool, certFile, keyFile := certificate(t)
	server := testserver.Own(t, func() (*testserver.RocketMQ, error) {
		return testserver.OpenRocketMQWith(testserver.RocketMQOptions{
			Closed: true,
			Java: []string{
				"-Dtls.test.mode.enable=false", "-Dtls.server.mode=enforcing", "-Dtls.server.certPath=" + certFile, "-Dtls.server.keyPath=" + keyFile,
				"-Dtls.enable=true", "-Dtls.client.authServer=false", "-Dtls.client.trustCertPath=" + certFile,
			},
			Settings: []string{
				"authenticationEnabled=true",
				"authenticationProvider=org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
				"authenticationMetadataProvider=org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider",
				`initAuthenticationUser={"username":"convergo","password":"a-secret-of-tests"}`,
				`innerClientAuthenticationCredentials={"accessKey":"convergo","secretKey":"a-secret-of-tests"}`,
			},
		})
	})
	cfg := configOf(server, prefix())
	cfg.TLS = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	cfg.Credentials = Credentials{AccessKey: "convergo", SecretKey: "a-secret-of-tests"}
	var b *Broker
	eventually(t, "the name server knows the broker", func() bool {
		var err error
		b, err = Open(t.Context(), cfg)
		return err == nil
	})
	defer b.Close()
	s := subscribe(t, b, "points")
	publish(t, b, spread(1)...)
	ack(t, fetch(t, s, 64)...)

	wrong := cfg
	wrong.Credentials.SecretKey = "another-secret-here"
	_, err := Open(t.Context(), wrong) // the name server asks for no signature, the broker does
	if !errors.Is(err, ErrNotAllowed) || convergo.VerdictOf(err) != convergo.Outage {
		t.Errorf("with a wrong secret: %v, want an outage that is not allowed", err)
	}
	if text := fmt.Sprintf("%v %v %+v", err, wrong.Credentials, wrong.Credentials); strings.Contains(text, "another-secret-here") {
		t.Errorf("the secret is told: %s", text)
	}
	for name, c := range map[string]*tls.Config{"a certificate of another": {RootCAs: x509.NewCertPool()}, "no TLS": nil} {
		stranger := cfg
		stranger.TLS, stranger.Timeout = c, 2*time.Second
		if _, err := Open(t.Context(), stranger); convergo.VerdictOf(err) != convergo.Outage {
			t.Errorf("%s: %v, want an outage", name, err)
		}
	}
}
