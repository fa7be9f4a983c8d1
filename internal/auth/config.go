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

// Config mirrors the flags. The empty string and nil mean "flag not given", so a
// command that wants to tell "--ws-auth=" from no flag, because a shell variable was empty,
// must refuse empty values itself.
type Config struct {
	Mode string // --ws-auth: "" (see TokensFile), capability-token, signed-bearer-token

	// For capability-token: exactly one of the two.
	TokenFile   string // --ws-token-file: file that holds the token
	TokenSHA256 string // --ws-token-sha256: SHA-256 digest of the token, hex in either case

	// For signed-bearer-token: one of the files, or both.
	SharedSecretFile    string  // --ws-shared-secret-file: file that holds the HS256 key
	JWKSFile            string  // --ws-jwks-file: file that holds keys for EdDSA and RS256
	Issuer              string  // --ws-issuer: required value of iss; blank = any
	Audience            string  // --ws-audience: required value in aud; blank = any
	MaxClockSkewSeconds *uint64 // --ws-max-clock-skew-seconds: for exp and nbf; nil = 30

	// TokensFile (--tokens) is a file with any number of tokens, instead of a Mode.
	TokensFile string

	// ClientCAFile (--tls-client-ca) has the authorities that sign client certificates.
	// Every client needs one then, besides its token unless an entry of the tokens file
	// is about the certificate, or there are no tokens at all.
	ClientCAFile string

	// AllowQueryToken (--ws-allow-query-token) accepts the credential from ?token=… as
	// well. It is for clients that cannot send a header, and off by default because URLs
	// land in logs. Goes with either mode, and with the tokens file.
	AllowQueryToken bool

	// Now is the clock that expiry is compared with; nil = time.Now.
	Now func() time.Time
}

// New checks the configuration and reads the files, which are read again by
// [Authenticator.Refresh]. It returns nil without an error if no flag was given.
//
// Secret files are UTF-8 text; white space at both ends does not count. A path may be
// relative or start with "~/".
func New(cfg Config, webSocketListener bool) (*Authenticator, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.Mode == "" && cfg.TokensFile == "" && cfg.ClientCAFile == "" {
		return nil, nil
	}
	// Mistakes in the flags themselves come first, then the listener, then the files.
	if !webSocketListener {
		return nil, errors.New("WebSocket auth requires a WebSocket listener, not stdio")
	}
	state, err := trusted.Load(cfg.load)
	if err != nil {
		return nil, err
	}
	return &Authenticator{state: state, allowQueryToken: cfg.AllowQueryToken}, nil
}

// check finds mistakes in the flags.
func (cfg Config) check() error {
	tokenFlags := cfg.TokenFile != "" || cfg.TokenSHA256 != ""
	jwtFlags := cfg.SharedSecretFile != "" || cfg.JWKSFile != "" || cfg.Issuer != "" || cfg.Audience != ""
	switch cfg.Mode {
	case "":
		switch {
		case cfg.TokensFile != "" && (tokenFlags || jwtFlags):
			return errors.New("with `--tokens` everything about tokens stands in that file; leave the other flags about tokens out")
		case cfg.TokensFile == "" && (tokenFlags || jwtFlags || cfg.MaxClockSkewSeconds != nil || cfg.AllowQueryToken):
			return errors.New("websocket auth flags require `--ws-auth capability-token` or `--ws-auth signed-bearer-token`")
		}
	case ModeCapabilityToken:
		switch {
		case jwtFlags || cfg.MaxClockSkewSeconds != nil:
			return errors.New("`--ws-shared-secret-file`, `--ws-issuer`, `--ws-audience`, and `--ws-max-clock-skew-seconds` require `--ws-auth signed-bearer-token`")
		case cfg.TokenFile != "" && cfg.TokenSHA256 != "":
			return errors.New("`--ws-token-file` and `--ws-token-sha256` are mutually exclusive")
		case cfg.TokenSHA256 != "":
			if _, err := parseDigest(cfg.TokenSHA256); err != nil {
				return err
			}
		case cfg.TokenFile == "":
			return errors.New("`--ws-token-file` or `--ws-token-sha256` is required when `--ws-auth capability-token` is set")
		}
	case ModeSignedBearerToken:
		switch {
		case tokenFlags:
			return errors.New("`--ws-token-file` and `--ws-token-sha256` require `--ws-auth capability-token`, not `signed-bearer-token`")
		case cfg.SharedSecretFile == "" && cfg.JWKSFile == "":
			return errors.New("`--ws-shared-secret-file` is required when `--ws-auth signed-bearer-token` is set")
		}
	default:
		return fmt.Errorf("invalid value %q for `--ws-auth`; expected `capability-token` or `signed-bearer-token`", cfg.Mode)
	}
	if cfg.Mode != "" && cfg.TokensFile != "" {
		return errors.New("`--tokens` and `--ws-auth` are mutually exclusive; put the token into the file")
	}
	return nil
}

// load reads everything that can change.
func (cfg Config) load(files *trusted.Files) (*state, error) {
	s := &state{tokens: cfg.Mode != "" || cfg.TokensFile != ""}
	if cfg.ClientCAFile != "" {
		text, path, err := readTrusted(files, cfg.ClientCAFile, "client CA file", trusted.Public)
		if err != nil {
			return nil, err
		}
		if s.pool, err = parsePool(text); err != nil {
			return nil, fmt.Errorf("client CA file %s: %w", path, err)
		}
	}
	var err error
	e := &entry{name: "token", now: cfg.now()}
	switch {
	case cfg.TokensFile != "":
		s.entries, err = cfg.readTokens(files)
		return s, err
	case cfg.TokenFile != "":
		e.token, err = cfg.capabilityFromFile(files)
	case cfg.TokenSHA256 != "":
		e.token, err = parseDigest(cfg.TokenSHA256)
	case cfg.Mode == ModeSignedBearerToken:
		e.name = "" // the token tells
		e.token, err = cfg.signedBearer(files)
	default:
		return s, nil
	}
	s.entries = []*entry{e}
	return s, err
}

func (cfg Config) now() func() time.Time {
	if cfg.Now == nil {
		return time.Now
	}
	return cfg.Now
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

// signedBearer reads the keys of signed tokens.
func (cfg Config) signedBearer(files *trusted.Files) (*signedBearer, error) {
	var keys []key
	if cfg.SharedSecretFile != "" {
		secret, path, err := readSecret(files, cfg.SharedSecretFile)
		if err != nil {
			return nil, err
		}
		if len(secret) < minSharedSecretBytes {
			return nil, fmt.Errorf("signed websocket bearer secret %s must be at least %d bytes", path, minSharedSecretBytes)
		}
		keys = append(keys, secretKey(secret))
	}
	if cfg.JWKSFile != "" {
		text, path, err := readTrusted(files, cfg.JWKSFile, "JWKS file", trusted.Public)
		if err != nil {
			return nil, err
		}
		public, err := parseJWKS(text)
		if err != nil {
			return nil, fmt.Errorf("JWKS file %s: %w", path, err)
		}
		keys = append(keys, public...)
	}
	skew := uint64(defaultMaxClockSkewSeconds)
	if cfg.MaxClockSkewSeconds != nil {
		skew = *cfg.MaxClockSkewSeconds
	}
	if skew > math.MaxInt64 {
		return nil, errors.New("websocket auth clock skew must fit in a signed 64-bit integer")
	}
	return &signedBearer{
		keys:     keys,
		issuer:   strings.TrimSpace(cfg.Issuer),
		audience: strings.TrimSpace(cfg.Audience),
		skew:     int64(skew),
		now:      cfg.now(),
	}, nil
}

// readSecret returns the trimmed content of a secret file, and its absolute path for
// further errors.
func readSecret(files *trusted.Files, file string) (secret []byte, path string, err error) {
	content, path, err := readTrusted(files, file, "websocket auth secret", trusted.Secret)
	if err != nil {
		return nil, "", err
	}
	secret = bytes.TrimSpace(content)
	if len(secret) == 0 {
		return nil, "", fmt.Errorf("websocket auth secret %s must not be empty", path)
	}
	return secret, path, nil
}

// readTrusted returns the content of a file of text, and its absolute path for further
// errors; what says what file it is.
func readTrusted(files *trusted.Files, file, what string, kind trusted.Kind) (content []byte, path string, err error) {
	path, err = trusted.Absolute(file)
	if err != nil {
		return nil, "", fmt.Errorf("failed to read %s %s: %w", what, file, err)
	}
	content, err = files.Read(path, kind)
	if err == nil && !utf8.Valid(content) {
		err = errors.New("stream did not contain valid UTF-8")
	}
	if err != nil {
		return nil, "", fmt.Errorf("failed to read %s %s: %w", what, path, errno.Wrap(err))
	}
	return content, path, nil
}
