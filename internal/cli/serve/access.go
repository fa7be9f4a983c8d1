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
	"execserver/server"
)

// capabilityToken is the value of --ws-auth.
const capabilityToken = "capability-token"

// accessFlags are the flags that decide who may connect to a WebSocket listener. The flags of the
// released server, with its errors, accept one token; the file of --tokens has everything else.
type accessFlags struct {
	TLSCert, TLSKey string
	Auth            server.AuthConfig
	mode            string // of authentication
	insecureNoAuth  bool
	allowConfined   bool
	allowHosts      []string
	allowOrigins    []string
}

// DefineAccess defines the flags that decide who may connect to a WebSocket listener.
func (a *accessFlags) DefineAccess(f *pflag.FlagSet) {
	c := &a.Auth
	f.BoolVar(&a.insecureNoAuth, "insecure-no-auth", false, "admit every client without authentication, also from other machines and from all users of this one: each can run commands as the server's user")
	DefineAllowConfined(f, &a.allowConfined)
	f.StringArrayVar(&a.allowHosts, "allow-host", nil, "accept this `name` in the Host header of requests over loopback, in addition to localhost and addresses; may be repeated")
	f.StringArrayVar(&a.allowOrigins, "allow-origin", nil, "let web pages of this `origin` connect, such as https://example.com; may be repeated")
	f.StringVar(&a.TLSCert, "tls-cert", "", "serve wss:// with the certificate chain in this PEM `file`")
	f.StringVar(&a.TLSKey, "tls-key", "", "read the private key of --tls-cert from this PEM `file`")
	f.StringVar(&c.ClientCAFile, "tls-client-ca", "", "require a client certificate from a certificate authority in this PEM `file`")
	f.StringVar(&c.TokensFile, "tokens", "", "read any number of tokens and their rights from this TOML `file`")
	f.StringVar(&a.mode, "ws-auth", "", "authenticate WebSocket clients with one token instead of --tokens; the `mode` is capability-token")
	f.StringVar(&c.TokenFile, "ws-token-file", "", "with --ws-auth, read the token from this `file`")
	f.StringVar(&c.TokenSHA256, "ws-token-sha256", "", "with --ws-auth, SHA-256 of the token without a line end, in `hex`, instead of --ws-token-file")
}

// allowConfined is the name of the flag that DefineAllowConfined defines.
const allowConfined = "allow-confined-peers"

// AllowConfinedHint is the flag that admits confined processes.
const AllowConfinedHint = "--" + allowConfined

// DefineAllowConfined defines the flag that admits confined processes of this machine.
func DefineAllowConfined(f *pflag.FlagSet, allow *bool) {
	f.BoolVar(allow, allowConfined, false, "admit processes of this machine that are confined, as in a sandbox or a container, or cannot be identified: sandboxed commands can then escape through this program")
}

// CompleteAccess checks what the flag library cannot.
func (a *accessFlags) CompleteAccess() error {
	switch a.mode {
	case "", capabilityToken:
	case "signed-bearer-token":
		return cli.InvalidValue("ws-auth", a.mode, "give the keys of signed tokens in the file of --tokens")
	default:
		return cli.InvalidValue("ws-auth", a.mode, "expected capability-token")
	}
	for _, name := range a.allowHosts {
		if name == "" || strings.ContainsAny(name, ":/*[] ") {
			return cli.InvalidValue("allow-host", name, "expected a name without a port")
		}
	}
	for _, origin := range a.allowOrigins {
		// Accept only what a browser sends; nothing else would match.
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" || origin != fmt.Sprintf("%s://%s", u.Scheme, u.Host) || strings.ContainsAny(origin, "*@") {
			return cli.InvalidValue("allow-origin", origin, "expected scheme://host or scheme://host:port, as the page's browser sends it")
		}
	}
	return nil
}

// ApplyAccess sets the options from the flags, except Auth.
func (a *accessFlags) ApplyAccess(o *server.Options) {
	o.AnyLoopbackPeer, o.AllowHosts, o.AllowOrigins = a.insecureNoAuth, a.allowHosts, a.allowOrigins
	o.AllowConfinedPeers, o.ConfinedPeersHint = a.allowConfined, AllowConfinedHint
}

// authenticator returns the configured authentication, or server.Unauthenticated.
func (a *accessFlags) authenticator(addr Address) (*server.Authenticator, error) {
	if err := a.checkAuth(); err != nil {
		return nil, err
	}
	if a.mode == "" && a.Auth.TokensFile == "" && a.Auth.ClientCAFile == "" {
		return server.Unauthenticated, nil
	}
	if addr.Kind != ListenWebSocket {
		return nil, fmt.Errorf("WebSocket auth requires a WebSocket listener, not %s", addr.Kind)
	}
	authenticator, err := server.NewAuthenticator(a.Auth)
	if errors.Is(err, auth.ErrNoClientCA) {
		err = fmt.Errorf("%w; name their file with --tls-client-ca", err)
	}
	return authenticator, err
}

// checkAuth refuses contradictory flags.
func (a *accessFlags) checkAuth() error {
	c := &a.Auth
	token := c.TokenFile != "" || c.TokenSHA256 != ""
	switch {
	case c.TokensFile != "" && a.mode != "":
		return errors.New("`--tokens` and `--ws-auth` are mutually exclusive; put the token into the file")
	case c.TokensFile != "" && token:
		return errors.New("`--tokens` cannot be combined with the other token flags")
	case a.mode == "" && token:
		return errors.New("websocket auth flags require `--ws-auth capability-token`")
	case c.TokenFile != "" && c.TokenSHA256 != "":
		return errors.New("`--ws-token-file` and `--ws-token-sha256` are mutually exclusive")
	case c.TokenSHA256 != "" && !auth.IsDigest(c.TokenSHA256):
		return errors.New("--ws-token-sha256 must be a 64-character hex SHA-256 digest")
	case a.mode != "" && !token:
		return errors.New("`--ws-token-file` or `--ws-token-sha256` is required when `--ws-auth capability-token` is set")
	}
	return nil
}

// loadTLS reads the certificate and the key, if configured. The server uses the returned value,
// which is refreshed when the files change.
func (o *Flags) loadTLS(clients *server.Authenticator) (*auth.Reloaded[*tls.Certificate], error) {
	switch {
	case o.TLSCert == "" && o.Auth.ClientCAFile != "":
		return nil, fmt.Errorf("--tls-client-ca needs --tls-cert and --tls-key")
	case o.TLSCert == "":
		return nil, nil
	}
	certificate, err := auth.LoadFiles(func(files *auth.Files) (*tls.Certificate, error) { return ReadPair(files, o.TLSCert, o.TLSKey) })
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
func ReadPair(files *auth.Files, certFile, keyFile string) (*tls.Certificate, error) {
	certificate, err := files.Read(certFile, auth.PublicFile)
	if err != nil {
		return nil, fmt.Errorf("read TLS file %s: %w", certFile, sys.WrapError(err))
	}
	key, err := files.Read(keyFile, auth.SecretFile)
	if err != nil {
		return nil, fmt.Errorf("read TLS file %s: %w", keyFile, sys.WrapError(err))
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("load TLS certificate %s with key %s: %w", certFile, keyFile, err)
	}
	return &pair, nil
}
