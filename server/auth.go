package server

import (
	"crypto/x509"
	"errors"
	"time"

	"execserver/internal/auth"
)

// Authenticator decides which WebSocket clients may connect, and what each may do.
// [NewAuthenticator] makes one; the zero value admits nobody. Its methods may be called
// concurrently.
type Authenticator struct {
	auth auth.Authenticator
}

// Unauthenticated requires no credentials: everybody who can connect can run commands as the
// server's user. On Linux, over loopback only the server's own user and root can connect, unless
// Options.AnyLoopbackPeer is set.
var Unauthenticated = new(Authenticator)

// errNoAuthenticator is the error for WebSocket clients when Options.Auth is nil.
var errNoAuthenticator = errors.New("this server admits no WebSocket clients: its Options.Auth is nil; " +
	"set it to what NewAuthenticator returns, or to Unauthenticated to admit everybody")

// AuthConfig describes how clients authenticate. Clients send a bearer token with the upgrade
// request. Set the fields of one kind of token, or ClientCAFile, or both.
//
// The path of a file may be relative or start with "~/". Files with secrets are UTF-8 text;
// leading and trailing white space is ignored. Other users must not be able to read them, or
// to change any of these files.
type AuthConfig struct {
	// One token that all clients share: the token, a file that holds it, or its SHA-256
	// digest in hex. It has at least 16 bytes.
	Token, TokenFile, TokenSHA256 string

	// Signed tokens (JWT): a file with the HS256 key, which has at least 32 bytes, or a
	// JWKS file with public keys for EdDSA and RS256, or both. Issuer and Audience are the
	// required values of iss and aud; "" means any.
	SharedSecretFile, JWKSFile string
	Issuer, Audience           string

	// MaxClockSkew is how far the clocks of server and signer may differ, in whole
	// seconds. 0 means 30 seconds, and a negative value none.
	MaxClockSkew time.Duration

	// TokensFile is a TOML file with any number of tokens, each with a name, a scope and
	// a sandbox of its own (docs/security.md).
	TokensFile string

	// ClientCAFile holds the authorities that sign client certificates. The caller's TLS
	// configuration must request certificates, and verify them with
	// [Authenticator.ClientCAs].
	ClientCAFile string

	// AllowQueryToken also accepts the token from ?token=… in the URL. URLs land in logs.
	AllowQueryToken bool

	// Gateway lets tokens of TokensFile name an account and machines, which only the
	// gateway of the command honors.
	Gateway bool
}

// NewAuthenticator reads the files of config and returns an Authenticator. It returns an
// error if a file cannot be used, or if the fields contradict each other. No error
// contains any part of a secret.
func NewAuthenticator(config AuthConfig) (*Authenticator, error) {
	var skew *int64
	if config.MaxClockSkew != 0 {
		skew = new(int64(max(0, config.MaxClockSkew) / time.Second))
	}
	authenticator, err := auth.New(auth.Config{
		Token: config.Token, TokenFile: config.TokenFile, TokenSHA256: config.TokenSHA256, TokensFile: config.TokensFile,
		SharedSecretFile: config.SharedSecretFile, JWKSFile: config.JWKSFile,
		Issuer: config.Issuer, Audience: config.Audience, MaxClockSkewSeconds: skew,
		ClientCAFile: config.ClientCAFile, AllowQueryToken: config.AllowQueryToken, Gateway: config.Gateway,
	})
	if err != nil {
		return nil, err
	}
	return &Authenticator{*authenticator}, nil
}

// Refresh reads the files again. changed reports whether a changed file is in use now;
// the caller should then call [Server.Recheck]. After an error the Authenticator stays as
// it was.
func (a *Authenticator) Refresh() (changed bool, err error) { return a.inner().Refresh() }

// Poll is like Refresh for a program that calls it again and again, such as every second.
// It uses a changed file only if the previous Poll found the same content, because a file
// that is being written may admit more clients than the complete file.
func (a *Authenticator) Poll() (changed bool, err error) { return a.inner().Poll() }

// ClientCAs returns the authorities whose client certificates are valid now, or nil if
// clients need no certificate.
func (a *Authenticator) ClientCAs() *x509.CertPool { return a.inner().ClientCAs() }

// Files returns the absolute paths of the files that the Authenticator reads now: those
// that hold secrets, and those that other users may read but not change.
// SandboxOptions.Auth keeps confined commands from them.
func (a *Authenticator) Files() (secret, public []string) {
	return a.paths(auth.SecretFile), a.paths(auth.PublicFile)
}

func (a *Authenticator) paths(kind auth.FileKind) []string { return a.inner().Paths(kind) }

// inner returns the Authenticator of package auth, or nil, which admits everybody.
func (a *Authenticator) inner() *auth.Authenticator {
	if a == nil {
		return nil
	}
	return &a.auth
}

// Peers are the users and groups of this machine that may connect to a unix socket,
// in addition to the server's own user and root. Their members must also be able to open the
// socket. Peer credentials are supported on Linux, macOS and FreeBSD; on other systems a
// server with Peers refuses every connection.
type Peers struct {
	UIDs []uint // user ids
	GIDs []uint // group ids, of a user's own group or a supplementary one
}
