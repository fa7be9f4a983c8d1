package main

import (
	"crypto/tls"
	"fmt"

	"execserver/internal/errno"
	"execserver/internal/trusted"
)

// loadTLS reads the certificate and the key, if there are any.
func (o *options) loadTLS() error {
	if o.tlsCert == "" {
		return nil
	}
	certificate, err := trusted.Read(o.tlsCert, trusted.Public)
	if err != nil {
		return fmt.Errorf("read TLS file %s: %w", o.tlsCert, errno.Wrap(err))
	}
	key, err := trusted.Read(o.tlsKey, trusted.Secret)
	if err != nil {
		return fmt.Errorf("read TLS file %s: %w", o.tlsKey, errno.Wrap(err))
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return fmt.Errorf("load TLS certificate %s with key %s: %w", o.tlsCert, o.tlsKey, err)
	}
	o.tls = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	return nil
}
