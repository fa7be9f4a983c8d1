package auth

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// tokensFile is the content of a tokens file.
type tokensFile struct {
	Token []tokenEntry `toml:"token"`
}

// tokenEntry is one [[token]]. It has exactly one of SHA256, Secret, JWKS and
// Certificate.
type tokenEntry struct {
	Name string `toml:"name"`

	SHA256      string `toml:"sha256"`      // of a capability token, in hex
	Secret      string `toml:"secret"`      // file with the HS256 key of signed tokens
	JWKS        string `toml:"jwks"`        // file with the EdDSA and RS256 keys of signed tokens
	Certificate string `toml:"certificate"` // a name in a client certificate

	Issuer   string    `toml:"issuer"`   // of signed tokens; "" = any
	Audience string    `toml:"audience"` // of signed tokens; "" = any
	Expires  time.Time `toml:"expires"`  // zero: never
	Query    bool      `toml:"query"`    // also accept the token from ?token=…

	grantEntry
}

// ErrNoClientCA reports that a tokens file has an entry for a certificate, but no
// authorities are configured.
var ErrNoClientCA = errors.New("certificate needs the authorities of client certificates")

// maxTokens bounds the entries of a file, because the server tries each of them with
// every token.
const maxTokens = 1000

// readTokens reads the entries of a tokens file. Paths in it are relative to its
// directory.
func (cfg Config) readTokens(files *Files) ([]*entry, error) {
	text, path, err := readTrusted(files, cfg.TokensFile, "tokens file", SecretFile)
	if err != nil {
		return nil, err
	}
	var file tokensFile
	meta, err := toml.Decode(string(text), &file)
	if err == nil {
		err = checkKeys(meta)
	}
	if err == nil && len(file.Token) > maxTokens {
		err = fmt.Errorf("it has %d tokens, the limit is %d", len(file.Token), maxTokens)
	}
	if err != nil {
		return nil, fmt.Errorf("tokens file %s: %w", path, tomlError(err))
	}
	sandboxes, err := sandboxed(text, len(file.Token))
	if err != nil {
		return nil, fmt.Errorf("tokens file %s: %w", path, tomlError(err))
	}
	entries := make([]*entry, len(file.Token))
	seen := make(map[string]bool)
	for i, t := range file.Token {
		entries[i], err = cfg.entry(files, filepath.Dir(path), t)
		if err == nil {
			entries[i].grant, err = t.grant(sandboxes[i])
			t.Expires = time.Time{}
			entries[i].definition = fmt.Sprintf("%#v, a sandbox: %t", t, sandboxes[i])
		}
		if err == nil && !cfg.Gateway && (t.Account != "" || t.Machines != nil) {
			err = errors.New("account and machines are for the tokens of a gateway")
		}
		if err == nil && (seen[t.Name] || t.SHA256 != "" && seen[strings.ToLower(t.SHA256)]) {
			err = errors.New("its name or its sha256 is that of another token in the file")
		}
		if err != nil {
			return nil, fmt.Errorf("tokens file %s: token %d (name %q): %w", path, i+1, t.Name, err)
		}
		seen[t.Name], seen[strings.ToLower(t.SHA256)] = true, true
	}
	return entries, nil
}

// sandboxed reports which of the tokens have a sandbox, including an empty one.
func sandboxed(text []byte, n int) ([]bool, error) {
	var file struct {
		Token []struct {
			Sandbox map[string]any `toml:"sandbox"`
		} `toml:"token"`
	}
	_, err := toml.Decode(string(text), &file)
	have := make([]bool, n)
	for i, t := range file.Token {
		have[i] = t.Sandbox != nil
	}
	return have, err
}

// checkKeys refuses unknown keys. The library accepts a known name in other letters, so a
// file could have it twice.
func checkKeys(meta toml.MetaData) error {
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return fmt.Errorf("unknown key %q", unknown[0])
	}
	for _, key := range meta.Keys() {
		if name := key[len(key)-1]; name != strings.ToLower(name) {
			return fmt.Errorf("unknown key %q", key)
		}
	}
	return nil
}

// tomlError returns the line number without the text around it, which may be secret.
func tomlError(err error) error {
	if parse, ok := errors.AsType[toml.ParseError](err); ok {
		return fmt.Errorf("line %d cannot be understood", parse.Position.Line)
	}
	return err
}

// entry makes an entry from a token in the file.
func (cfg Config) entry(files *Files, dir string, t tokenEntry) (*entry, error) {
	if !validName(t.Name) {
		return nil, errors.New("name must have from 1 to 64 of the characters A-Z a-z 0-9 . _ @ -")
	}
	given := 0
	for _, value := range []string{t.SHA256, t.Secret, t.JWKS, t.Certificate} {
		if value != "" {
			given++
		}
	}
	if given != 1 {
		return nil, errors.New("exactly one of sha256, secret, jwks and certificate must be given")
	}
	if t.Secret == "" && t.JWKS == "" && (t.Issuer != "" || t.Audience != "") {
		return nil, errors.New("issuer and audience go with secret and jwks")
	}
	if t.Certificate != "" && t.Query {
		return nil, errors.New("query is about tokens, and the entry is for a certificate")
	}
	e := &entry{name: t.Name, expires: t.Expires, query: t.Query || cfg.AllowQueryToken, now: cfg.now()}
	inner := cfg
	inner.Issuer, inner.Audience = t.Issuer, t.Audience
	inside := func(file string) string {
		if file == "" || filepath.IsAbs(file) || strings.HasPrefix(file, "~") {
			return file
		}
		return filepath.Join(dir, file)
	}
	switch {
	case t.SHA256 != "":
		digest, err := parseDigest(t.SHA256)
		if err != nil {
			return nil, errors.New("sha256 must have 64 hexadecimal digits")
		}
		e.token = digest
	case t.Certificate != "":
		if cfg.ClientCAFile == "" {
			return nil, ErrNoClientCA
		}
		e.subject = t.Certificate
	default:
		inner.SharedSecretFile, inner.JWKSFile = inside(t.Secret), inside(t.JWKS)
		signed, err := inner.signedBearer(files)
		if err != nil {
			return nil, err
		}
		e.token = signed
	}
	return e, nil
}

// validName reports whether a name is valid everywhere. It must not have a colon, which
// follows it in the names of principals.
func validName(name string) bool {
	const good = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@-"
	return name != "" && len(name) <= 64 && strings.Trim(name, good) == ""
}

// capabilityFromFile reads a capability token.
func (cfg Config) capabilityFromFile(files *Files) (tokenVerifier, error) {
	token, path, err := readSecret(files, cfg.TokenFile)
	if err != nil {
		return nil, err
	}
	if len(token) < minTokenBytes {
		return nil, fmt.Errorf("websocket bearer token in %s has %d bytes and must have at least %d; make one: (umask 077; head -c 32 /dev/urandom | base64 > %s)",
			path, len(token), minTokenBytes, path)
	}
	return tokenDigest(sha256.Sum256(token)), nil
}
