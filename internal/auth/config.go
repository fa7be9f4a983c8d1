package auth

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"execserver/internal/sys"
)

const (
	// defaultMaxClockSkewSeconds is how far the clocks of signer and server may differ.
	defaultMaxClockSkewSeconds = 30

	// minSharedSecretBytes is the size of an HS256 digest; a shorter key is weaker than it.
	minSharedSecretBytes = 32
)

// Config configures the authentication of clients. It has one kind of token, ClientCAFile,
// or both.
type Config struct {
	// A capability token, in one of three forms.
	Token       string // the token
	TokenFile   string // a file that holds it
	TokenSHA256 string // its SHA-256 digest, hex in either case

	// Signed bearer tokens: one of the files, or both.
	SharedSecretFile    string // holds the HS256 key
	JWKSFile            string // holds keys for EdDSA and RS256
	Issuer              string // required value of iss; blank = any
	Audience            string // required value in aud; blank = any
	MaxClockSkewSeconds *int64 // for exp and nbf, not negative; nil = 30

	// TokensFile has any number of tokens, capability tokens and signed ones.
	TokensFile string

	// Gateway accepts entries of TokensFile that name an account or machines. Elsewhere
	// nothing would honor them.
	Gateway bool

	// ClientCAFile contains the authorities that sign client certificates. Every client
	// then needs a certificate, and also a token unless the tokens file has an entry
	// for the certificate or no tokens are configured.
	ClientCAFile string

	// AllowQueryToken accepts every token from ?token=… as well; an entry of TokensFile may
	// do so for its own. It is for clients that cannot send a header, and off by default
	// because URLs land in logs.
	AllowQueryToken bool

	// Now is the clock that expiry is compared with; nil = time.Now.
	Now func() time.Time
}

// New checks the configuration and reads the files, which are read again by
// [Authenticator.Refresh].
//
// Secret files are UTF-8 text; white space at both ends does not count. A path may be
// relative or start with "~/".
func New(cfg Config) (*Authenticator, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	state, err := LoadFiles(cfg.load)
	if err != nil {
		return nil, err
	}
	return &Authenticator{state}, nil
}

// check finds contradictions.
func (cfg Config) check() error {
	forms := 0
	for _, form := range []string{cfg.Token, cfg.TokenFile, cfg.TokenSHA256} {
		if form != "" {
			forms++
		}
	}
	capability, signed, list := forms > 0, cfg.SharedSecretFile != "" || cfg.JWKSFile != "", cfg.TokensFile != ""
	switch {
	case forms > 1:
		return errors.New("the token is given more than once; set only one of Token, TokenFile and TokenSHA256")
	case capability && signed, list && (capability || signed):
		return errors.New("there is more than one kind of token; set the fields of one, or put all tokens into TokensFile")
	case !signed && (cfg.Issuer != "" || cfg.Audience != ""), cfg.MaxClockSkewSeconds != nil && !signed && !list:
		return errors.New("the fields Issuer, Audience and MaxClockSkew are about signed tokens; set SharedSecretFile or JWKSFile")
	case !capability && !signed && !list && cfg.AllowQueryToken:
		return errors.New("AllowQueryToken is about tokens, and there are none")
	case !capability && !signed && !list && cfg.ClientCAFile == "":
		return errors.New("there are neither tokens nor a ClientCAFile, so that nobody could connect")
	case cfg.Token != "" && len(cfg.Token) < minTokenBytes:
		return fmt.Errorf("the token has %d bytes and must have at least %d", len(cfg.Token), minTokenBytes)
	case cfg.TokenSHA256 != "":
		_, err := parseDigest(cfg.TokenSHA256)
		return err
	}
	return nil
}

// load reads everything that can change.
func (cfg Config) load(files *Files) (*state, error) {
	s := new(state)
	if cfg.ClientCAFile != "" {
		text, path, err := readTrusted(files, cfg.ClientCAFile, "client CA file", PublicFile)
		if err != nil {
			return nil, err
		}
		if s.pool, err = parsePool(text); err != nil {
			return nil, fmt.Errorf("client CA file %s: %w", path, err)
		}
	}
	e := &entry{name: "token", query: cfg.AllowQueryToken, now: cfg.now()}
	var err error
	switch {
	case cfg.TokensFile != "":
		s.tokens = true
		s.entries, err = cfg.readTokens(files)
		return s, err
	case cfg.Token != "":
		e.token = tokenDigest(sha256.Sum256([]byte(cfg.Token)))
	case cfg.TokenFile != "":
		e.token, err = cfg.capabilityFromFile(files)
	case cfg.TokenSHA256 != "":
		e.token, err = parseDigest(cfg.TokenSHA256)
	case cfg.SharedSecretFile != "" || cfg.JWKSFile != "":
		e.name = "" // the token contains the name
		e.token, err = cfg.signedBearer(files)
	default:
		return s, nil
	}
	s.tokens, s.entries = true, []*entry{e}
	return s, err
}

func (cfg Config) now() func() time.Time {
	if cfg.Now == nil {
		return time.Now
	}
	return cfg.Now
}

// IsDigest reports whether s can be the digest of a token.
func IsDigest(s string) bool {
	_, err := parseDigest(s)
	return err == nil
}

// parseDigest reads the digest of a token. The error does not repeat s: it may be the
// token itself, given by mistake.
func parseDigest(s string) (tokenDigest, error) {
	digest, err := hex.DecodeString(strings.TrimSpace(s))
	if err != nil || len(digest) != sha256.Size {
		return tokenDigest{}, errors.New("the digest of a token must be a 64-character hex SHA-256 digest")
	}
	return tokenDigest(digest), nil
}

// signedBearer reads the keys of signed tokens.
func (cfg Config) signedBearer(files *Files) (*signedBearer, error) {
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
		text, path, err := readTrusted(files, cfg.JWKSFile, "JWKS file", PublicFile)
		if err != nil {
			return nil, err
		}
		public, err := parseJWKS(text)
		if err != nil {
			return nil, fmt.Errorf("JWKS file %s: %w", path, err)
		}
		keys = append(keys, public...)
	}
	skew := int64(defaultMaxClockSkewSeconds)
	if cfg.MaxClockSkewSeconds != nil {
		skew = *cfg.MaxClockSkewSeconds
	}
	return &signedBearer{
		keys:     keys,
		issuer:   strings.TrimSpace(cfg.Issuer),
		audience: strings.TrimSpace(cfg.Audience),
		skew:     skew,
		now:      cfg.now(),
	}, nil
}

// readSecret returns the trimmed content of a secret file, and its absolute path for
// further errors.
func readSecret(files *Files, file string) (secret []byte, path string, err error) {
	content, path, err := readTrusted(files, file, "websocket auth secret", SecretFile)
	if err != nil {
		return nil, "", err
	}
	secret = bytes.TrimSpace(content)
	if len(secret) == 0 {
		return nil, "", fmt.Errorf("websocket auth secret %s must not be empty", path)
	}
	return secret, path, nil
}

// readTrusted returns the content of a text file, and its absolute path for errors; what
// describes the file.
func readTrusted(files *Files, file, what string, kind FileKind) (content []byte, path string, err error) {
	path, err = AbsolutePath(file)
	if err != nil {
		return nil, "", fmt.Errorf("failed to read %s %s: %w", what, file, err)
	}
	content, err = files.Read(path, kind)
	if err == nil && !utf8.Valid(content) {
		err = errors.New("stream did not contain valid UTF-8")
	}
	if err != nil {
		return nil, "", fmt.Errorf("failed to read %s %s: %w", what, path, sys.WrapError(err))
	}
	return content, path, nil
}
