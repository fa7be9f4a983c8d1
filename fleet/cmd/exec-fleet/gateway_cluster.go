package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/spf13/pflag"

	"execserver/fleet/internal/broker"
	"execserver/internal/auth"
	"execserver/internal/cli"
	"execserver/internal/cli/serve"
	"execserver/internal/sys"
)

// clusterFlags are the flags of gateway about the cluster of its own NATS server.
type clusterFlags struct {
	node, listen, name, advertise string
	routes                        []string
	secretFile                    string
	cert, key, ca                 string
	replicas                      int
}

func (c *clusterFlags) define(f *pflag.FlagSet) {
	f.StringVar(&c.node, "node", "", "`NAME` of this NATS server in a cluster, the same after each start")
	f.StringVar(&c.listen, "cluster-listen", "", "be one NATS server of a cluster, and listen for the others at `URL`: nats://IP:PORT")
	f.StringVar(&c.advertise, "cluster-advertise", "", "tell the other servers to connect to this one at `HOST:PORT`, instead of its IP addresses")
	f.StringVar(&c.name, "cluster-name", "exec-server", "`NAME` of the cluster")
	f.StringArrayVar(&c.routes, "routes", nil, "connect to another server of the cluster at `URL`: nats://HOST:PORT; may be repeated")
	f.StringVar(&c.secretFile, "cluster-secret-file", "", "read the secret that all servers of the cluster have from this `FILE`")
	f.StringVar(&c.cert, "cluster-cert", "", "use TLS between the servers of the cluster, with the certificate chain in this PEM `file`, for a server and for a client")
	f.StringVar(&c.key, "cluster-key", "", "read the private key of --cluster-cert from this PEM `file`")
	f.StringVar(&c.ca, "cluster-ca", "", "require that the other servers have certificates from an authority in this PEM `file`")
	f.IntVar(&c.replicas, "replicas", 0, "`number` of NATS servers that keep the list of machines; default is 3 in a cluster, else 1")
}

// complete checks what the flag library cannot.
func (c *clusterFlags) complete(machines string) error {
	tlsFiles := len(serve.Given(nil, c.cert, c.key, c.ca))
	switch {
	case c.listen != "" && (c.secretFile == "" || c.node == ""):
		return errors.New("--cluster-listen needs --cluster-secret-file and --node")
	case c.listen != "" && machines == "":
		return errors.New("--cluster-listen needs --machines, because each server would have a token of its own")
	case c.listen != "" && len(c.routes) == 0:
		return errors.New("--cluster-listen needs --routes to the other servers of the cluster")
	case c.listen == "" && len(c.routes) > 0:
		return errors.New("--routes needs --cluster-listen")
	case c.listen == "" && (tlsFiles > 0 || c.advertise != ""):
		return errors.New("--cluster-cert, --cluster-key, --cluster-ca and --cluster-advertise need --cluster-listen")
	case tlsFiles > 0 && tlsFiles < 3:
		return errors.New("--cluster-cert, --cluster-key and --cluster-ca go together, because each server checks the other one's certificate")
	case c.replicas < 0 || c.replicas > 5:
		return cli.InvalidValue("replicas", fmt.Sprint(c.replicas), "expected 1 to 5")
	}
	if c.replicas == 0 {
		c.replicas = 1
		if c.listen != "" {
			c.replicas = 3
		}
	}
	return nil
}

// load reads the certificate of the server in the cluster, if there is one. It is read
// again when the files change.
func (c *clusterFlags) load() (*auth.Reloaded[*tls.Certificate], error) {
	if c.cert == "" {
		return nil, nil
	}
	return auth.LoadFiles(func(files *auth.Files) (*tls.Certificate, error) { return serve.ReadPair(files, c.cert, c.key) })
}

// apply makes the NATS server one of the cluster, if there is one.
func (c *clusterFlags) apply(to *broker.Options, certificate *auth.Reloaded[*tls.Certificate]) error {
	to.Name = c.node
	if c.listen == "" {
		return nil
	}
	secret, err := auth.ReadFile(c.secretFile, auth.SecretFile)
	if err != nil {
		return fmt.Errorf("read the secret of the cluster in %s: %w", c.secretFile, sys.WrapError(err))
	}
	to.Secret = strings.TrimSpace(string(secret))
	if len(to.Secret) < 16 {
		return fmt.Errorf("the secret of the cluster in %s is too short; it must have at least 16 bytes", c.secretFile)
	}
	to.Cluster, to.ClusterListen, to.ClusterAdvertise, to.Routes = c.name, c.listen, c.advertise, c.routes
	if certificate == nil {
		return nil
	}
	text, err := auth.ReadFile(c.ca, auth.PublicFile)
	if err != nil {
		return fmt.Errorf("read TLS file %s: %w", c.ca, sys.WrapError(err))
	}
	known, err := authorities(c.ca, text)
	if err != nil {
		return err
	}
	if err := checkPeer(certificate.Get(), known); err != nil {
		return fmt.Errorf("the certificate in %s is not for the cluster: %w", c.cert, err)
	}
	// A server is the client of half of its routes.
	to.ClusterTLS = &tls.Config{
		MinVersion:           tls.VersionTLS12,
		ClientAuth:           tls.RequireAndVerifyClientCert,
		ClientCAs:            known,
		RootCAs:              known,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate.Get(), nil },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate.Get(), nil },
	}
	return nil
}

// checkPeer checks that the other servers of the cluster will accept a certificate. They
// would only log why they do not.
func checkPeer(certificate *tls.Certificate, authorities *x509.CertPool) error {
	chain := x509.NewCertPool()
	for _, der := range certificate.Certificate[1:] {
		one, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		chain.AddCert(one)
	}
	for name, usage := range map[string]x509.ExtKeyUsage{"serverAuth": x509.ExtKeyUsageServerAuth, "clientAuth": x509.ExtKeyUsageClientAuth} {
		_, err := certificate.Leaf.Verify(x509.VerifyOptions{Roots: authorities, Intermediates: chain, KeyUsages: []x509.ExtKeyUsage{usage}})
		if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.IncompatibleUsage {
			return fmt.Errorf("it lacks the extended key usage %s; it needs serverAuth and clientAuth", name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkClear refuses ways over the network that TLS does not protect.
func (o *gatewayOptions) checkClear() error {
	if o.insecureNoTLS {
		return nil
	}
	const end = "use 127.0.0.1, or use --insecure-no-tls if that is what you want"
	for _, text := range o.fleetListen {
		switch scheme := schemeBeyond(text); {
		case scheme == "nats" && o.TLSCert == "":
			return fmt.Errorf("refusing to let machines join at %s without TLS: anyone on the network could read their tokens and every session; "+
				"add --tls-cert and --tls-key, %s", text, end)
		case scheme == "ws":
			return fmt.Errorf("refusing to let machines join at %s without TLS: anyone on the network could read their tokens and every session; "+
				"make it wss:// and add --tls-cert and --tls-key, %s", text, end)
		}
	}
	for _, text := range append([]string{o.cluster.listen}, o.cluster.routes...) {
		if o.cluster.cert == "" && schemeBeyond(text) != "" {
			return fmt.Errorf("refusing to use the route %s without TLS: anyone on the network could read the secret of the cluster and every session; "+
				"add --cluster-cert, --cluster-key and --cluster-ca, %s", text, end)
		}
	}
	for _, text := range o.nats {
		if scheme := schemeBeyond(text); scheme == "nats" || scheme == "ws" {
			return fmt.Errorf("refusing to use NATS at %s without TLS: anyone on the network could read every session; "+
				"make it tls:// or wss://, %s", text, end)
		}
	}
	return nil
}

// schemeBeyond returns the scheme of a URL that is not of loopback, and "" for others.
func schemeBeyond(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "" // who uses it reports it
	}
	ip, err := netip.ParseAddr(u.Hostname())
	if strings.EqualFold(u.Hostname(), "localhost") || err == nil && ip.Unmap().IsLoopback() {
		return ""
	}
	return u.Scheme
}
