package serve

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/pflag"

	"execserver/internal/auth"
	"execserver/internal/cli"
	"execserver/internal/sys"
	"execserver/internal/trusted"
	"execserver/server"
)

// capabilityToken is the value of --ws-auth.
const capabilityToken = "capability-token"

// doors are the flags that decide who may connect to a WebSocket listener. One token can be
// given by the flags of the released server, whose errors these are too; everything else
// about tokens is in the file of --tokens.
type doors struct {
	TLSCert, TLSKey string
	Auth            server.AuthConfig
	mode            string // of authentication
	insecureNoAuth  bool
	allowConfined   bool
	allowHosts      []string
	allowOrigins    []string
}

// DefineDoors defines the flags that decide who may connect to a WebSocket listener.
func (d *doors) DefineDoors(f *pflag.FlagSet) {
	c := &d.Auth
	f.BoolVar(&d.insecureNoAuth, "insecure-no-auth", false, "without authentication, listen beyond this machine, and on loopback serve every user: everybody who can connect can run commands")
	DefineAllowConfined(f, &d.allowConfined)
	f.StringArrayVar(&d.allowHosts, "allow-host", nil, "let clients on loopback address this machine by this `name`, besides localhost and addresses; may be repeated")
	f.StringArrayVar(&d.allowOrigins, "allow-origin", nil, "let web pages of this `origin` connect, such as https://example.com; may be repeated")
	f.StringVar(&d.TLSCert, "tls-cert", "", "serve wss:// with the certificate chain in this PEM `file`")
	f.StringVar(&d.TLSKey, "tls-key", "", "read the private key of --tls-cert from this PEM `file`")
	f.StringVar(&c.ClientCAFile, "tls-client-ca", "", "require a client certificate from an authority in this PEM `file`")
	f.StringVar(&c.TokensFile, "tokens", "", "read any number of tokens and their rights from this TOML `file`")
	f.StringVar(&d.mode, "ws-auth", "", "or authenticate WebSocket clients with one token: the `mode` is capability-token")
	f.StringVar(&c.TokenFile, "ws-token-file", "", "read that token from this `file`")
	f.StringVar(&c.TokenSHA256, "ws-token-sha256", "", "SHA-256 of that token, in `hex`, instead of --ws-token-file")
}

// allowConfined is the name of the flag that DefineAllowConfined defines.
const allowConfined = "allow-confined-peers"

// AllowConfinedHint says how to let confined processes connect.
const AllowConfinedHint = "--" + allowConfined

// DefineAllowConfined defines the flag that lets confined processes of this machine connect.
func DefineAllowConfined(f *pflag.FlagSet, allow *bool) {
	f.BoolVar(allow, allowConfined, false, "let processes of this machine connect that are confined, and those of which nobody can tell: commands in sandboxes and containers can then get out through this program")
}

// DefineServerUser defines the flag of a client that names who may have its secrets.
func DefineServerUser(f *pflag.FlagSet, name *string) {
	f.StringVar(name, "server-user", "", "send secrets in clear to a server of this machine also if it runs as this `USER`, and not only as this user or root")
}

// CompleteDoors checks what the flag library cannot.
func (d *doors) CompleteDoors() error {
	switch d.mode {
	case "", capabilityToken:
	case "signed-bearer-token":
		return cli.InvalidValue("ws-auth", d.mode, "give the keys of signed tokens in the file of --tokens")
	default:
		return cli.InvalidValue("ws-auth", d.mode, "expected capability-token")
	}
	for _, name := range d.allowHosts {
		if name == "" || strings.ContainsAny(name, ":/*[] ") {
			return cli.InvalidValue("allow-host", name, "expected a name without a port")
		}
	}
	for _, origin := range d.allowOrigins {
		// It must be one that a browser sends, because another would admit nobody.
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" || origin != fmt.Sprintf("%s://%s", u.Scheme, u.Host) || strings.ContainsAny(origin, "*@") {
			return cli.InvalidValue("allow-origin", origin, "expected scheme://host or scheme://host:port, as the page's browser sends it")
		}
	}
	return nil
}

// ApplyDoors sets the options that the flags are about, apart from Auth.
func (d *doors) ApplyDoors(o *server.Options) {
	o.AnyLoopbackPeer, o.AllowHosts, o.AllowOrigins = d.insecureNoAuth, d.allowHosts, d.allowOrigins
	o.AllowConfinedPeers, o.ConfinedPeersHint = d.allowConfined, AllowConfinedHint
}

// authenticator returns the authentication that the flags describe:
// server.Unauthenticated if they demand none.
func (d *doors) authenticator(where Address) (*server.Authenticator, error) {
	if err := d.checkAuth(); err != nil {
		return nil, err
	}
	if d.mode == "" && d.Auth.TokensFile == "" && d.Auth.ClientCAFile == "" {
		return server.Unauthenticated, nil
	}
	if where.Kind != ListenWebSocket {
		return nil, fmt.Errorf("WebSocket auth requires a WebSocket listener, not %s", where.Kind)
	}
	authenticator, err := server.NewAuthenticator(d.Auth)
	if errors.Is(err, auth.ErrNoClientCA) {
		err = fmt.Errorf("%w; name their file with --tls-client-ca", err)
	}
	return authenticator, err
}

// checkAuth finds flags that contradict each other.
func (d *doors) checkAuth() error {
	c := &d.Auth
	token := c.TokenFile != "" || c.TokenSHA256 != ""
	switch {
	case c.TokensFile != "" && d.mode != "":
		return errors.New("`--tokens` and `--ws-auth` are mutually exclusive; put the token into the file")
	case c.TokensFile != "" && token:
		return errors.New("with `--tokens` everything about tokens stands in that file; leave the other flags about tokens out")
	case d.mode == "" && token:
		return errors.New("websocket auth flags require `--ws-auth capability-token`")
	case c.TokenFile != "" && c.TokenSHA256 != "":
		return errors.New("`--ws-token-file` and `--ws-token-sha256` are mutually exclusive")
	case c.TokenSHA256 != "" && !auth.IsDigest(c.TokenSHA256):
		return errors.New("--ws-token-sha256 must be a 64-character hex SHA-256 digest")
	case d.mode != "" && !token:
		return errors.New("`--ws-token-file` or `--ws-token-sha256` is required when `--ws-auth capability-token` is set")
	}
	return nil
}

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
		return nil, fmt.Errorf("read TLS file %s: %w", certFile, sys.WrapError(err))
	}
	key, err := files.Read(keyFile, trusted.Secret)
	if err != nil {
		return nil, fmt.Errorf("read TLS file %s: %w", keyFile, sys.WrapError(err))
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("load TLS certificate %s with key %s: %w", certFile, keyFile, err)
	}
	return &pair, nil
}
