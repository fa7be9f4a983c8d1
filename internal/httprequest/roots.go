package httprequest

import (
	"crypto/x509"
	"fmt"
	"os"
)

// rootCertificates returns the system's certificates and those in the files that the
// environment names.
func rootCertificates() (*x509.CertPool, error) {
	var extra [][]byte
	for _, variable := range []string{"CODEX_CA_CERTIFICATE", "SSL_CERT_FILE"} {
		path := os.Getenv(variable)
		if path == "" {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read the CA certificates that %s names: %w", variable, err)
		}
		if !x509.NewCertPool().AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("read the CA certificates that %s names: no certificate in %s; it must be a PEM file", variable, path)
		}
		extra = append(extra, text)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("read the CA certificates of the system: %w", err)
	}
	for _, text := range extra {
		roots.AppendCertsFromPEM(text)
	}
	return roots, nil
}
