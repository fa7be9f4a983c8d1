package main

import (
	"crypto/tls"
	"fmt"

	"execserver/internal/errno"
	"execserver/internal/trusted"
	"execserver/server"
)

// loadTLS reads the certificate and the key, if there are any. The server uses the
// returned value, which is refreshed when the files change.
func (o *options) loadTLS(clients *server.Authenticator) (*trusted.Value[*tls.Certificate], error) {
	switch {
	case o.tlsCert == "" && o.auth.config.ClientCAFile != "":
		return nil, fmt.Errorf("--tls-client-ca needs --tls-cert and --tls-key")
	case o.tlsCert == "":
		return nil, nil
	}
	certificate, err := trusted.Load(o.readPair)
	if err != nil {
		return nil, err
	}
	o.tls = &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			config := &tls.Config{
				Certificates: []tls.Certificate{*certificate.Get()},
				MinVersion:   tls.VersionTLS12,
				// A resumed TLS session would keep certificates that were valid before.
				SessionTicketsDisabled: true,
			}
			if config.ClientCAs = clients.ClientCAs(); config.ClientCAs != nil {
				config.ClientAuth = tls.RequireAndVerifyClientCert
			}
			return config, nil
		},
	}
	return certificate, nil
}

// readPair reads the certificate with its key.
func (o *options) readPair(files *trusted.Files) (*tls.Certificate, error) {
	certificate, err := files.Read(o.tlsCert, trusted.Public)
	if err != nil {
		return nil, fmt.Errorf("read TLS file %s: %w", o.tlsCert, errno.Wrap(err))
	}
	key, err := files.Read(o.tlsKey, trusted.Secret)
	if err != nil {
		return nil, fmt.Errorf("read TLS file %s: %w", o.tlsKey, errno.Wrap(err))
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("load TLS certificate %s with key %s: %w", o.tlsCert, o.tlsKey, err)
	}
	return &pair, nil
}
