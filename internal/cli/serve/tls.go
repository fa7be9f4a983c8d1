package serve

import (
	"crypto/tls"
	"fmt"

	"execserver/internal/errno"
	"execserver/internal/trusted"
	"execserver/server"
)

// loadTLS reads the certificate and the key, if there are any. The server uses the
// returned value, which is refreshed when the files change.
func (o *Flags) loadTLS(clients *server.Authenticator) (*trusted.Value[*tls.Certificate], error) {
	switch {
	case o.TLSCert == "" && o.Auth.ClientCAFile != "":
		return nil, fmt.Errorf("--tls-client-ca needs --tls-cert and --tls-key")
	case o.TLSCert == "":
		return nil, nil
	}
	certificate, err := trusted.Load(func(files *trusted.Files) (*tls.Certificate, error) { return ReadPair(files, o.TLSCert, o.TLSKey) })
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

// ReadPair reads a certificate with its key.
func ReadPair(files *trusted.Files, certFile, keyFile string) (*tls.Certificate, error) {
	certificate, err := files.Read(certFile, trusted.Public)
	if err != nil {
		return nil, fmt.Errorf("read TLS file %s: %w", certFile, errno.Wrap(err))
	}
	key, err := files.Read(keyFile, trusted.Secret)
	if err != nil {
		return nil, fmt.Errorf("read TLS file %s: %w", keyFile, errno.Wrap(err))
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("load TLS certificate %s with key %s: %w", certFile, keyFile, err)
	}
	return &pair, nil
}
