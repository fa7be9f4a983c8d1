package auth

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// certificate is a client's. TLS has verified it, and that the client has its key.
type certificate struct {
	chain   []*x509.Certificate // as the client presented it, the client's first
	expires time.Time           // when the first of the verified chain expires
}

// certificate returns the client certificate of a request if it is valid now, or nil.
func (s *state) certificate(r *http.Request) *certificate {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || len(r.TLS.PeerCertificates) == 0 {
		return nil
	}
	c := &certificate{chain: r.TLS.PeerCertificates}
	for _, one := range r.TLS.VerifiedChains[0] {
		c.expires = earlier(c.expires, one.NotAfter)
	}
	// The authorities may have changed since the handshake.
	if !c.trustedBy(s.pool) || len(c.names()) == 0 {
		return nil
	}
	return c
}

// trustedBy reports whether an authority in the pool has signed the certificate.
func (c *certificate) trustedBy(pool *x509.CertPool) bool {
	if pool == nil {
		return false
	}
	intermediates := x509.NewCertPool()
	for _, one := range c.chain[1:] {
		intermediates.AddCert(one)
	}
	_, err := c.chain[0].Verify(x509.VerifyOptions{
		Roots: pool, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err == nil
}

// names returns the names of the certificate's subject, the best one first.
func (c *certificate) names() (names []string) {
	leaf := c.chain[0]
	for _, uri := range leaf.URIs {
		names = append(names, uri.String())
	}
	names = append(names, leaf.DNSNames...)
	names = append(names, leaf.EmailAddresses...)
	if leaf.Subject.CommonName != "" {
		names = append(names, leaf.Subject.CommonName)
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" || len(name) > maxNameBytes })
}

// certified returns the principal of a certificate without a token, or nil.
func (s *state) certified(c *certificate) *Principal {
	if !s.tokens {
		return &Principal{Name: "certificate:" + c.names()[0], Expires: c.expires, certificate: c}
	}
	for _, e := range s.entries {
		if e.token == nil && slices.Contains(c.names(), e.subject) && !e.expired() {
			return e.admit(&Principal{Expires: c.expires, certificate: c})
		}
	}
	return nil
}

// parsePool reads the certificates of authorities.
func parsePool(text []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	for found := false; ; found = true {
		block, rest := pem.Decode(text)
		if block == nil {
			if !found || len(bytes.TrimSpace(rest)) > 0 {
				return nil, errors.New("it must have certificates in PEM, and nothing else after them")
			}
			return pool, nil
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("it has a %s where a CERTIFICATE should be", block.Type)
		}
		one, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		if !one.IsCA {
			return nil, fmt.Errorf("the certificate of %s is not that of an authority (CA:TRUE)", one.Subject)
		}
		pool.AddCert(one)
		text = rest
	}
}
