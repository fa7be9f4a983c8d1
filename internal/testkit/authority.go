package testkit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates for tests.
type Authority struct {
	t           testing.TB
	dir         string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	File        string // with the certificate, in PEM
}

// NewAuthority makes an authority with the given name.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	a := &Authority{t: t, dir: t.TempDir()}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.certificate, a.key = a.sign(template)
	a.File = a.write(name+".pem", a.certificate.Raw)
	return a
}

// Intermediate makes an authority whose certificate a signs.
func (a *Authority) Intermediate(name string) *Authority {
	a.t.Helper()
	b := &Authority{t: a.t, dir: a.dir}
	b.certificate, b.key = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	b.File = a.write(name+".pem", b.certificate.Raw)
	return b
}

// sign makes a certificate. The first one is the authority's own, which signs itself.
func (a *Authority) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		a.t.Fatal(err)
	}
	if template.NotBefore.IsZero() {
		template.NotBefore = time.Now().Add(-time.Hour)
	}
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	parent, by := a.certificate, a.key
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		a.t.Fatal(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return made, key
}

// Client makes a certificate for a client. If change is not nil, it edits the template.
func (a *Authority) Client(name string, change func(*x509.Certificate)) tls.Certificate {
	a.t.Helper()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	if change != nil {
		change(template)
	}
	made, key := a.sign(template)
	return tls.Certificate{Certificate: [][]byte{made.Raw}, PrivateKey: key}
}

// Own returns the authority's own certificate, for a test that presents it as a client's.
func (a *Authority) Own() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{a.certificate.Raw}, PrivateKey: a.key}
}

// Server makes a certificate for a server on loopback, and returns the files that hold
// it and its key.
func (a *Authority) Server() (certificate, key string) {
	a.t.Helper()
	return a.ServerWith(nil)
}

// ServerWith is like Server. If change is not nil, it edits the template.
func (a *Authority) ServerWith(change func(*x509.Certificate)) (certificate, key string) {
	a.t.Helper()
	template := &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if change != nil {
		change(template)
	}
	made, private := a.sign(template)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	key = filepath.Join(a.dir, "server.key")
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	if err := os.WriteFile(key, text, 0o600); err != nil {
		a.t.Fatal(err)
	}
	return a.write("server.pem", made.Raw), key
}

// Roots returns a pool with this authority alone.
func (a *Authority) Roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

func (a *Authority) write(name string, der []byte) string {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(path, text, 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}
