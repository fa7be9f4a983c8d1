package auth

import (
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"

	"github.com/golang-jwt/jwt/v5"
)

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
