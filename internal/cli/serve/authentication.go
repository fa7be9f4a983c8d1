package serve

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"execserver/internal/auth"
	"execserver/internal/cli/usage"
	"execserver/server"
)

// capabilityToken is the value of --ws-auth.
const capabilityToken = "capability-token"

// authFlags are the flags about the authentication of WebSocket clients. One token can be
// given by the flags of the released server, whose errors these are too; everything else
// about tokens is in the file of --tokens.
type authFlags struct {
	mode   string
	Config server.AuthConfig
}

func (a *authFlags) Define(f *pflag.FlagSet) {
	c := &a.Config
	f.StringVar(&c.TokensFile, "tokens", "", "read any number of tokens and their rights from this TOML `file`")
	f.StringVar(&a.mode, "ws-auth", "", "or authenticate WebSocket clients with one token: the `mode` is capability-token")
	f.StringVar(&c.TokenFile, "ws-token-file", "", "read that token from this `file`")
	f.StringVar(&c.TokenSHA256, "ws-token-sha256", "", "SHA-256 of that token, in `hex`, instead of --ws-token-file")
}

// Complete checks what the flag library cannot.
func (a *authFlags) Complete() error {
	switch a.mode {
	case "", capabilityToken:
		return nil
	case "signed-bearer-token":
		return usage.InvalidValue("ws-auth", a.mode, "give the keys of signed tokens in the file of --tokens")
	}
	return usage.InvalidValue("ws-auth", a.mode, "expected capability-token")
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
	authenticator, err := server.NewAuthenticator(a.Config)
	if errors.Is(err, auth.ErrNoClientCA) {
		err = fmt.Errorf("%w; name their file with --tls-client-ca", err)
	}
	return authenticator, err
}

// check finds flags that contradict each other.
func (a *authFlags) check() error {
	c := &a.Config
	token := c.TokenFile != "" || c.TokenSHA256 != ""
	switch {
	case c.TokensFile != "" && a.mode != "":
		return errors.New("`--tokens` and `--ws-auth` are mutually exclusive; put the token into the file")
	case c.TokensFile != "" && token:
		return errors.New("with `--tokens` everything about tokens stands in that file; leave the other flags about tokens out")
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
