package serve

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spf13/pflag"

	"execserver/internal/auth"
	"execserver/internal/cli/usage"
	"execserver/server"
)

// The values of --ws-auth.
const (
	capabilityToken   = "capability-token"
	signedBearerToken = "signed-bearer-token"
)

// authFlags are the flags about the authentication of WebSocket clients. They and their
// errors are those of the released server.
type authFlags struct {
	mode         string
	maxClockSkew uint64 // seconds
	skewGiven    bool
	Config       server.AuthConfig
}

func (a *authFlags) Define(f *pflag.FlagSet) {
	c := &a.Config
	f.StringVar(&a.mode, "ws-auth", "", "authenticate WebSocket clients by `mode`: capability-token or signed-bearer-token")
	f.StringVar(&c.TokensFile, "tokens", "", "read any number of tokens and their rights from this TOML `file`, instead of --ws-auth")
	f.StringVar(&c.TokenFile, "ws-token-file", "", "read the capability token from this `file`")
	f.StringVar(&c.TokenSHA256, "ws-token-sha256", "", "SHA-256 of the capability token, in `hex`, instead of --ws-token-file")
	f.StringVar(&c.SharedSecretFile, "ws-shared-secret-file", "", "read the HMAC secret of signed bearer tokens (JWT, HS256) from this `file`")
	f.StringVar(&c.JWKSFile, "ws-jwks-file", "", "read the public keys of signed bearer tokens (JWT, EdDSA or RS256) from this JWKS `file`")
	f.StringVar(&c.Issuer, "ws-issuer", "", "require this `name` as the issuer of signed bearer tokens")
	f.StringVar(&c.Audience, "ws-audience", "", "require this `name` as the audience of signed bearer tokens")
	f.Uint64Var(&a.maxClockSkew, "ws-max-clock-skew-seconds", 30, "allow the clocks of signer and server to differ by this many `seconds`")
	f.BoolVar(&c.AllowQueryToken, "ws-allow-query-token", false, "also accept the token as ?token=… in the URL, for Codex before 0.158, which cannot send a header")
}

// Complete checks what the flag library cannot.
func (a *authFlags) Complete(f *pflag.FlagSet) error {
	a.skewGiven = f.Changed("ws-max-clock-skew-seconds")
	switch a.mode {
	case "", capabilityToken, signedBearerToken:
		return nil
	}
	return usage.InvalidValue("ws-auth", a.mode, "expected capability-token or signed-bearer-token")
}

// authenticator returns the authentication that the flags describe:
// server.Unauthenticated if they demand none.
func (a *authFlags) authenticator(where Address) (*server.Authenticator, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	if a.mode == "" && a.Config.TokensFile == "" && a.Config.ClientCAFile == "" {
		return server.Unauthenticated, nil
	}
	if where.Kind != ListenWebSocket {
		return nil, fmt.Errorf("WebSocket auth requires a WebSocket listener, not %s", where.Kind)
	}
	config := a.Config
	switch {
	case !a.skewGiven:
	case a.maxClockSkew > math.MaxInt64:
		return nil, errors.New("websocket auth clock skew must fit in a signed 64-bit integer")
	case a.maxClockSkew == 0:
		config.MaxClockSkew = -1 // none
	default:
		config.MaxClockSkew = time.Duration(min(a.maxClockSkew, uint64(math.MaxInt64/time.Second))) * time.Second
	}
	authenticator, err := server.NewAuthenticator(config)
	if errors.Is(err, auth.ErrNoClientCA) {
		err = fmt.Errorf("%w; name their file with --tls-client-ca", err)
	}
	return authenticator, err
}

// check finds flags that contradict each other.
func (a *authFlags) check() error {
	c := &a.Config
	capability := c.TokenFile != "" || c.TokenSHA256 != ""
	signed := c.SharedSecretFile != "" || c.JWKSFile != "" || c.Issuer != "" || c.Audience != ""
	switch a.mode {
	case "":
		switch {
		case c.TokensFile != "" && (capability || signed):
			return errors.New("with `--tokens` everything about tokens stands in that file; leave the other flags about tokens out")
		case c.TokensFile == "" && (capability || signed || a.skewGiven || c.AllowQueryToken):
			return errors.New("websocket auth flags require `--ws-auth capability-token` or `--ws-auth signed-bearer-token`")
		}
	case capabilityToken:
		switch {
		case signed || a.skewGiven:
			return errors.New("`--ws-shared-secret-file`, `--ws-issuer`, `--ws-audience`, and `--ws-max-clock-skew-seconds` require `--ws-auth signed-bearer-token`")
		case c.TokenFile != "" && c.TokenSHA256 != "":
			return errors.New("`--ws-token-file` and `--ws-token-sha256` are mutually exclusive")
		case c.TokenSHA256 != "" && !auth.IsDigest(c.TokenSHA256):
			return errors.New("--ws-token-sha256 must be a 64-character hex SHA-256 digest")
		case !capability:
			return errors.New("`--ws-token-file` or `--ws-token-sha256` is required when `--ws-auth capability-token` is set")
		}
	case signedBearerToken:
		switch {
		case capability:
			return errors.New("`--ws-token-file` and `--ws-token-sha256` require `--ws-auth capability-token`, not `signed-bearer-token`")
		case c.SharedSecretFile == "" && c.JWKSFile == "":
			return errors.New("`--ws-shared-secret-file` is required when `--ws-auth signed-bearer-token` is set")
		}
	}
	if a.mode != "" && c.TokensFile != "" {
		return errors.New("`--tokens` and `--ws-auth` are mutually exclusive; put the token into the file")
	}
	return nil
}
