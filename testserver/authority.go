package testserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Authority signs the certificates of a test's servers and clients. Its files can be read by everybody, so that a server that runs as another
// user can.
type Authority struct {
	// File holds its own certificate, which is what the other side trusts.
	File string

	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority whose files are in dir.
func NewAuthority(dir, name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a := &Authority{dir: dir, key: key}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	a.File, err = a.sign(name, a.cert)
	return a, err
}

// Formerly writes the certificate that the authority had until it expired at that time: of the same name and key.
func (a *Authority) Formerly(until time.Time) (file string, err error) {
	before := *a.cert
	before.SerialNumber, before.NotBefore, before.NotAfter = big.NewInt(until.UnixNano()), until.Add(-24*time.Hour), until
	return a.sign(before.Subject.CommonName+"-formerly", &before)
}

func (a *Authority) sign(name string, own *x509.Certificate) (file string, err error) {
	text, err := x509.CreateCertificate(rand.Reader, own, own, &a.key.PublicKey, a.key)
	if err != nil {
		return "", err
	}
	file = filepath.Join(a.dir, name+".pem")
	return file, writePEM(file, "CERTIFICATE", text)
}

// Issue writes a certificate for that name, which is its subject and, beside 127.0.0.1, the only host that it is good for, and its key. Both
// sides of a connection can show it.
func (a *Authority) Issue(name string) (certFile, keyFile string, err error) {
	return a.IssueAs(name, func(*x509.Certificate) {})
}

// IssueAs is Issue for a certificate that is changed before it is signed: one that has expired, or is for other hosts.
func (a *Authority) IssueAs(name string, change func(*x509.Certificate)) (certFile, keyFile string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	change(template)
	text, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return "", "", err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", "", err
	}
	certFile, keyFile = filepath.Join(a.dir, name+"-cert.pem"), filepath.Join(a.dir, name+"-key.pem")
	return certFile, keyFile, errors.Join(writePEM(certFile, "CERTIFICATE", text), writePEM(keyFile, "PRIVATE KEY", secret))
}

func writePEM(file, kind string, text []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: text}), 0o644)
}
