package auth

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"net/url"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"
)

// maxJWTBytes bounds a token of an unknown peer, because the server parses it before it
// can check the signature.
const maxJWTBytes = 64 << 10

// jwtParser checks only the form. The methods of the keys check signatures. The parser's
// own checks of claims are off, because they count in time.Duration, which overflows with
// large skews, and accept fractional and quoted times. Strict decoding refuses signatures
// that differ from the canonical one in unused bits.
var jwtParser = jwt.NewParser(jwt.WithStrictDecoding(), jwt.WithoutClaimsValidation())

// signedBearer accepts JSON Web Tokens that one of the keys has signed.
type signedBearer struct {
	keys             []key
	issuer, audience string // "" = any
	skew             int64  // seconds, not negative
	now              func() time.Time
}

func (s *signedBearer) verify(token string) (*Principal, *Refusal) {
	c, by, err := s.decode(token)
	if err != nil {
		// A more precise error would only help an attacker who forges tokens.
		return nil, refuseJWT
	}
	if refusal := s.check(c); refusal != nil {
		return nil, refusal
	}
	return &Principal{Name: c.principal(), Expires: s.end(c), key: by.digest}, nil
}

func (s *signedBearer) stillValid(p *Principal) bool {
	return slices.ContainsFunc(s.keys, func(k key) bool { return k.digest == p.key })
}

// end returns the time at which a token expires, or zero if a time.Time cannot represent
// it.
func (s *signedBearer) end(c *claims) time.Time {
	const year9999 = 253_402_300_799
	last := saturatingAdd(*c.exp, s.skew)
	if last >= year9999 {
		return time.Time{}
	}
	return time.Unix(last+1, 0)
}

// check decides about the claims of a token with a valid signature.
func (s *signedBearer) check(c *claims) *Refusal {
	now := s.now().Unix()
	switch {
	case now > saturatingAdd(*c.exp, s.skew):
		return refuseExpired
	case c.nbf != nil && now < saturatingAdd(*c.nbf, -s.skew):
		return refuseEarly
	case s.issuer != "" && (c.iss == nil || *c.iss != s.issuer):
		return refuseIssuer
	case s.audience != "" && !slices.Contains(c.aud, s.audience):
		return refuseAudience
	}
	return nil
}

// decode returns the claims of a token with a valid signature, and the key that has
// signed it.
func (s *signedBearer) decode(token string) (*claims, *key, error) {
	if len(token) > maxJWTBytes {
		return nil, nil, fmt.Errorf("token of %d bytes is over the limit of %d", len(token), maxJWTBytes)
	}
	parsed, parts, err := jwtParser.ParseUnverified(token, jwt.MapClaims{})
	if err != nil {
		return nil, nil, err
	}
	// RFC 7515 section 4.1.11: the server must support every extension that a token
	// calls critical, and it supports none.
	if _, ok := parsed.Header["crit"]; ok {
		return nil, nil, errors.New("token has critical extensions")
	}
	by, err := s.signer(parsed.Header, parts)
	if err != nil {
		return nil, nil, err
	}
	// The parser's own claims are a map of float64, which would lose digits.
	text, err := jwtParser.DecodeSegment(parts[1])
	if err != nil {
		return nil, nil, err
	}
	c, err := decodeClaims(text)
	if err == nil && len(c.principal()) > maxNameBytes {
		err = fmt.Errorf("issuer and subject make a name of more than %d bytes", maxNameBytes)
	}
	return c, by, err
}

// signer returns the key that has signed a token.
func (s *signedBearer) signer(header map[string]any, parts []string) (*key, error) {
	id := ""
	if value, ok := header["kid"]; ok && value != nil {
		if id, ok = value.(string); !ok {
			return nil, errors.New("kid is not a string")
		}
	}
	signature, err := jwtParser.DecodeSegment(parts[2])
	if err != nil {
		return nil, err
	}
	for i, k := range s.keys {
		if header["alg"] != k.method.Alg() || id != "" && k.id != "" && id != k.id {
			continue
		}
		if k.method.Verify(parts[0]+"."+parts[1], signature, k.key) == nil {
			return &s.keys[i], nil
		}
	}
	return nil, errors.New("no key has signed the token")
}

// maxNameBytes bounds the name of a principal, which is in every line of the log.
const maxNameBytes = 512

// principal names the subject of the token, as its issuer spells it if the token has one.
func (c *claims) principal() string {
	name := "jwt"
	for _, part := range []*string{c.iss, c.sub} {
		if part != nil {
			name += ":" + url.QueryEscape(*part) // which has no colon
		} else {
			name += ":"
		}
	}
	return name
}

// saturatingAdd returns a+b, or the nearest int64 if that is out of range.
func saturatingAdd(a, b int64) int64 {
	switch {
	case b > 0 && a > math.MaxInt64-b:
		return math.MaxInt64
	case b < 0 && a < math.MinInt64-b:
		return math.MinInt64
	}
	return a + b
}

// claims are the relevant members of a token's payload; all others are ignored.
type claims struct {
	exp *int64 // never nil in a decoded value
	nbf *int64
	iss *string
	sub *string
	aud audience
}

// decodeClaims is stricter than encoding/json is with structs: names match exactly, and a
// duplicate claim is an error, because signer and server could each read another one.
func decodeClaims(payload []byte) (*claims, error) {
	dec := json.NewDecoder(bytes.NewReader(payload))
	if start, err := dec.Token(); err != nil || start != json.Delim('{') {
		return nil, errors.New("claims are not an object")
	}
	var c claims
	seen := make(map[string]bool)
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		var field any
		switch name {
		case "exp":
			field = &c.exp
		case "nbf":
			field = &c.nbf
		case "iss":
			field = &c.iss
		case "sub":
			field = &c.sub
		case "aud":
			field = &c.aud
		default:
			continue
		}
		if seen[name.(string)] {
			return nil, fmt.Errorf("claim %s is given twice", name)
		}
		seen[name.(string)] = true
		// encoding/json would replace invalid bytes and compare the result.
		if !utf8.Valid(value) {
			return nil, fmt.Errorf("claim %s is not UTF-8", name)
		}
		if err := json.Unmarshal(value, field); err != nil {
			return nil, fmt.Errorf("claim %s: %w", name, err)
		}
	}
	if _, err := dec.Token(); err != nil { // the closing brace
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("data after the claims")
	}
	if c.exp == nil {
		return nil, errors.New("claim exp is missing")
	}
	return &c, nil
}

// audience is the value of aud: one string or an array of them; nil stands for null.
type audience []string

func (a *audience) UnmarshalJSON(data []byte) error {
	if data[0] != '[' {
		var one *string
		if err := json.Unmarshal(data, &one); err != nil {
			return err
		}
		if one != nil {
			*a = audience{*one}
		}
		return nil
	}
	var many []*string
	if err := json.Unmarshal(data, &many); err != nil {
		return err
	}
	for _, one := range many {
		if one == nil {
			return errors.New("null in an array of strings")
		}
		*a = append(*a, *one)
	}
	return nil
}

// key is a key that signs tokens. The key determines the method; a token cannot choose
// another one.
type key struct {
	id     string // "" for any
	method jwt.SigningMethod
	key    any // of the type that the method expects
	digest [sha256.Size]byte
}

// secretKey returns the key of a shared secret.
func secretKey(secret []byte) key {
	return key{method: jwt.SigningMethodHS256, key: secret, digest: sha256.Sum256(append([]byte("secret "), secret...))}
}

// Bounds of a JWKS file. Shorter RSA keys can be broken, and longer ones take long to
// check.
const (
	maxKeys    = 64
	minRSABits = 2048
	maxRSABits = 8192
)

// jwk is a key in a JWKS file (RFC 7517, RFC 8037).
type jwk struct {
	Kty string `json:"kty"`
	Kid string `json:"kid"`
	Use string `json:"use"`
	Alg string `json:"alg"`
	Crv string `json:"crv"`
	X   string `json:"x"`
	N   string `json:"n"`
	E   string `json:"e"`
	D   string `json:"d"`
	K   string `json:"k"`
}

// parseJWKS returns the public keys of a JWKS file that can sign tokens. It leaves out
// keys for other purposes.
func parseJWKS(text []byte) ([]key, error) {
	var set struct {
		Keys []jwk `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, fmt.Errorf("it is not a JWKS: %w", err)
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("it has %d keys, the limit is %d", len(set.Keys), maxKeys)
	}
	var keys []key
	for i, k := range set.Keys {
		made, err := k.key()
		if err != nil {
			return nil, fmt.Errorf("key %d (kid %q): %w", i+1, k.Kid, err)
		}
		if made != nil {
			keys = append(keys, *made)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("it has no key for EdDSA (Ed25519) or RS256")
	}
	return keys, nil
}

// key returns the key, or nil if it has another purpose.
func (k jwk) key() (*key, error) {
	switch {
	case k.Kty == "oct", k.K != "", k.D != "":
		return nil, errors.New("it is secret, and this file is for public keys; shared secrets have a file of their own")
	case k.Use != "" && k.Use != "sig":
		return nil, nil
	case k.Kty == "OKP" && k.Crv == "Ed25519" && (k.Alg == "" || k.Alg == "EdDSA" || k.Alg == "Ed25519"):
		x, err := base64.RawURLEncoding.DecodeString(k.X)
		if err != nil || len(x) != ed25519.PublicKeySize {
			return nil, errors.New("x is not a public key of Ed25519")
		}
		return &key{k.Kid, jwt.SigningMethodEdDSA, ed25519.PublicKey(x), k.digest()}, nil
	case k.Kty == "RSA" && (k.Alg == "" || k.Alg == "RS256"):
		public, err := k.rsa()
		if err != nil {
			return nil, err
		}
		return &key{k.Kid, jwt.SigningMethodRS256, public, k.digest()}, nil
	}
	return nil, nil
}

func (k jwk) rsa() (*rsa.PublicKey, error) {
	n, err := base64.RawURLEncoding.DecodeString(k.N)
	if err != nil {
		return nil, errors.New("n is not base64url")
	}
	e, err := base64.RawURLEncoding.DecodeString(k.E)
	if err != nil {
		return nil, errors.New("e is not base64url")
	}
	public := &rsa.PublicKey{N: new(big.Int).SetBytes(n)}
	if bits := public.N.BitLen(); bits < minRSABits || bits > maxRSABits {
		return nil, fmt.Errorf("it has %d bits; RSA keys have from %d to %d", bits, minRSABits, maxRSABits)
	}
	exponent := new(big.Int).SetBytes(e)
	if exponent.BitLen() > 31 || exponent.Cmp(big.NewInt(3)) < 0 || exponent.Bit(0) == 0 {
		return nil, errors.New("e is not a public exponent")
	}
	public.E = int(exponent.Int64())
	return public, nil
}

// digest returns a value that is the same for the same key under the same id.
func (k jwk) digest() [sha256.Size]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q %q %q", k.Kty, k.Kid, k.Crv, k.X, k.N, k.E))
}
