package auth

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"execserver/internal/errno"
	"execserver/internal/trusted"
)

// The values of [Config.Mode].
const (
	ModeCapabilityToken   = "capability-token"
	ModeSignedBearerToken = "signed-bearer-token"
)

const (
	// defaultMaxClockSkewSeconds is how far the clocks of signer and server may differ.
	defaultMaxClockSkewSeconds = 30

	// minSharedSecretBytes is the size of an HS256 digest; a shorter key is weaker than it.
	minSharedSecretBytes = 32
)

// Config mirrors the --ws-* flags. The empty string and nil mean "flag not given", so a
// command that wants to tell "--ws-auth=" from no flag, because a shell variable was empty,
// must refuse empty values itself.
type Config struct {
	Mode string // --ws-auth: "" (no authentication), capability-token, signed-bearer-token

	// For capability-token: exactly one of the two.
	TokenFile   string // --ws-token-file: file that holds the token
	TokenSHA256 string // --ws-token-sha256: SHA-256 digest of the token, hex in either case

	// For signed-bearer-token.
	SharedSecretFile    string  // --ws-shared-secret-file: file that holds the HS256 key; required
	Issuer              string  // --ws-issuer: required value of iss; blank = any
	Audience            string  // --ws-audience: required value in aud; blank = any
	MaxClockSkewSeconds *uint64 // --ws-max-clock-skew-seconds: for exp and nbf; nil = 30

	// AllowQueryToken (--ws-allow-query-token) accepts the credential from ?token=… as
	// well. It is for clients that cannot send a header, and off by default because URLs
	// land in logs. Goes with either mode.
	AllowQueryToken bool

	// Now is the clock that exp and nbf are compared with; nil = time.Now.
	Now func() time.Time
}

// New checks the configuration and reads the secret file, once: a later change of the file
// has no effect. It returns nil without an error if no flag was given.
//
// Secret files are UTF-8 text; white space at both ends does not count. A path may be
// relative or start with "~/".
func New(cfg Config, webSocketListener bool) (*Authenticator, error) {
	tokenFlags := cfg.TokenFile != "" || cfg.TokenSHA256 != ""
	jwtFlags := cfg.SharedSecretFile != "" || cfg.Issuer != "" || cfg.Audience != "" ||
		cfg.MaxClockSkewSeconds != nil

	var load func() (credential, error)
	switch cfg.Mode {
	case "":
		if tokenFlags || jwtFlags || cfg.AllowQueryToken {
			return nil, errors.New("websocket auth flags require `--ws-auth capability-token` or `--ws-auth signed-bearer-token`")
		}
		return nil, nil
	case ModeCapabilityToken:
		switch {
		case jwtFlags:
			return nil, errors.New("`--ws-shared-secret-file`, `--ws-issuer`, `--ws-audience`, and `--ws-max-clock-skew-seconds` require `--ws-auth signed-bearer-token`")
		case cfg.TokenFile != "" && cfg.TokenSHA256 != "":
			return nil, errors.New("`--ws-token-file` and `--ws-token-sha256` are mutually exclusive")
		case cfg.TokenFile != "":
			load = cfg.capabilityFromFile
		case cfg.TokenSHA256 != "":
			c, err := parseDigest(cfg.TokenSHA256)
			if err != nil {
				return nil, err
			}
			load = func() (credential, error) { return c, nil }
		default:
			return nil, errors.New("`--ws-token-file` or `--ws-token-sha256` is required when `--ws-auth capability-token` is set")
		}
	case ModeSignedBearerToken:
		switch {
		case tokenFlags:
			return nil, errors.New("`--ws-token-file` and `--ws-token-sha256` require `--ws-auth capability-token`, not `signed-bearer-token`")
		case cfg.SharedSecretFile == "":
			return nil, errors.New("`--ws-shared-secret-file` is required when `--ws-auth signed-bearer-token` is set")
		}
		load = cfg.signedBearer
	default:
		return nil, fmt.Errorf("invalid value %q for `--ws-auth`; expected `capability-token` or `signed-bearer-token`", cfg.Mode)
	}

	// Mistakes in the flags themselves come first, then the listener, then the files.
	if !webSocketListener {
		return nil, errors.New("WebSocket auth requires a WebSocket listener, not stdio")
	}
	cred, err := load()
	if err != nil {
		return nil, err
	}
	return &Authenticator{credential: cred, allowQueryToken: cfg.AllowQueryToken}, nil
}

// parseDigest reads a --ws-token-sha256 value. The error does not repeat the value: it may
// be the token itself, given by mistake.
func parseDigest(s string) (capability, error) {
	digest, err := hex.DecodeString(strings.TrimSpace(s))
	if err != nil || len(digest) != sha256.Size {
		return capability{}, errors.New("--ws-token-sha256 must be a 64-character hex SHA-256 digest")
	}
	return capability(digest), nil
}

func (cfg Config) capabilityFromFile() (credential, error) {
	token, path, err := readSecret(cfg.TokenFile)
	if err != nil {
		return nil, err
	}
	if len(token) < minTokenBytes {
		return nil, fmt.Errorf("websocket bearer token in %s has %d bytes and must have at least %d; make one: (umask 077; head -c 32 /dev/urandom | base64 > %s)",
			path, len(token), minTokenBytes, path)
	}
	return capability(sha256.Sum256(token)), nil
}

func (cfg Config) signedBearer() (credential, error) {
	secret, path, err := readSecret(cfg.SharedSecretFile)
	if err != nil {
		return nil, err
	}
	if len(secret) < minSharedSecretBytes {
		return nil, fmt.Errorf("signed websocket bearer secret %s must be at least %d bytes", path, minSharedSecretBytes)
	}
	skew := uint64(defaultMaxClockSkewSeconds)
	if cfg.MaxClockSkewSeconds != nil {
		skew = *cfg.MaxClockSkewSeconds
	}
	if skew > math.MaxInt64 {
		return nil, errors.New("websocket auth clock skew must fit in a signed 64-bit integer")
	}
	now := cfg.Now
	if now == nil {
		now = time.Now
	}
	return &signedBearer{
		secret:   secret,
		issuer:   strings.TrimSpace(cfg.Issuer),
		audience: strings.TrimSpace(cfg.Audience),
		skew:     int64(skew),
		now:      now,
	}, nil
}

// readSecret returns the trimmed content of a secret file, and its absolute path for
// further errors.
func readSecret(file string) (secret []byte, path string, err error) {
	path, err = trusted.Absolute(file)
	if err != nil {
		return nil, "", fmt.Errorf("failed to read websocket auth secret %s: %w", file, err)
	}
	content, err := trusted.Read(path, trusted.Secret)
	if err == nil && !utf8.Valid(content) {
		err = errors.New("stream did not contain valid UTF-8")
	}
	if err != nil {
		return nil, "", fmt.Errorf("failed to read websocket auth secret %s: %w", path, errno.Wrap(err))
	}
	secret = bytes.TrimSpace(content)
	if len(secret) == 0 {
		return nil, "", fmt.Errorf("websocket auth secret %s must not be empty", path)
	}
	return secret, path, nil
}
