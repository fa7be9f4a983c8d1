//go:build unix

package main

import (
	"bufio"
	"crypto"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// signer makes tokens with keys that the server knows, and with other keys.
type signer struct {
	t       *testing.T
	ed, bad ed25519.PrivateKey
	rsa     *rsa.PrivateKey
	jwks    string // the server's keys
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	s := &signer{t: t}
	var err error
	for _, key := range []*ed25519.PrivateKey{&s.ed, &s.bad} {
		if _, *key, err = ed25519.GenerateKey(rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	if s.rsa, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	s.jwks = fmt.Sprintf(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"ed","x":%q},{"kty":"RSA","kid":"rsa","alg":"RS256","use":"sig","n":%q,"e":"AQAB"},{"kty":"EC","crv":"P-256","kid":"ec"}]}`,
		b64url(s.ed.Public().(ed25519.PublicKey)), b64url(s.rsa.N.Bytes()))
	return s
}

func b64url(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// token signs a header and claims. how is ed, bad, rsa, pss or none, or else the secret
// of HS256.
func (s *signer) token(how, header, claims string) string {
	text := b64url([]byte(header)) + "." + b64url([]byte(claims))
	digest := sha256.Sum256([]byte(text))
	var signature []byte
	var err error
	switch how {
	case "ed":
		signature = ed25519.Sign(s.ed, []byte(text))
	case "bad":
		signature = ed25519.Sign(s.bad, []byte(text))
	case "rsa":
		signature, err = rsa.SignPKCS1v15(rand.Reader, s.rsa, crypto.SHA256, digest[:])
	case "pss":
		signature, err = rsa.SignPSS(rand.Reader, s.rsa, crypto.SHA256, digest[:], nil)
	case "none":
	default:
		signature = hmacSHA256([]byte(how), text)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return text + "." + b64url(signature)
}

// TestHostileTokens presents the credentials that an attacker without a valid token might
// try.
func TestHostileTokens(t *testing.T) {
	t.Parallel()
	s := newSigner(t)
	p := newServer(t, "--tokens", signedEntries(t, "secret", secret, "jwks", s.jwks))
	exp := time.Now().Unix() + 600
	good := fmt.Sprintf(`{"exp":%d,"iss":"me","aud":"you","sub":"ann"}`, exp)
	claims := func(more string) string { return fmt.Sprintf(`{"exp":%d,"aud":"you","iss":"me"%s}`, exp, more) }
	spki, err := x509.MarshalPKIXPublicKey(s.rsa.Public())
	if err != nil {
		t.Fatal(err)
	}
	publicPEM := string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki}))
	pkcs1PEM := string(pem.EncodeToMemory(&pem.Block{Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&s.rsa.PublicKey)}))
	badJWK := fmt.Sprintf(`{"kty":"OKP","crv":"Ed25519","x":%q}`, b64url(s.bad.Public().(ed25519.PublicKey)))
	const hs, ed, rs = `{"alg":"HS256"}`, `{"alg":"EdDSA"}`, `{"alg":"RS256"}`
	const invalid = "invalid websocket jwt"
	type row struct {
		name, token string
		status      int
		body        string
	}
	jwt := func(name, how, header, claims string, status int, body string) row {
		return row{name, s.token(how, header, claims), status, body}
	}
	rows := []row{
		jwt("HS256", secret, hs, good, 101, ""),
		jwt("EdDSA", "ed", ed, good, 101, ""),
		jwt("RS256", "rsa", rs, good, 101, ""),
		jwt("EdDSA with kid", "ed", `{"alg":"EdDSA","kid":"ed"}`, good, 101, ""),
		jwt("RS256 with kid", "rsa", `{"alg":"RS256","kid":"rsa","typ":"JWT"}`, good, 101, ""),
		jwt("kid null", "ed", `{"alg":"EdDSA","kid":null}`, good, 101, ""),

		jwt("alg none", "none", `{"alg":"none"}`, good, 401, invalid),
		jwt("alg None", "none", `{"alg":"None"}`, good, 401, invalid),
		jwt("alg nOnE, signed", secret, `{"alg":"nOnE"}`, good, 401, invalid),
		jwt("alg empty", secret, `{"alg":""}`, good, 401, invalid),
		jwt("alg missing", secret, `{}`, good, 401, invalid),
		jwt("alg null", secret, `{"alg":null}`, good, 401, invalid),
		jwt("alg list", secret, `{"alg":["HS256"]}`, good, 401, invalid),
		jwt("alg twice, none last", secret, `{"alg":"HS256","alg":"none"}`, good, 401, invalid),
		jwt("HS256 with the public key in PEM", publicPEM, hs, good, 401, invalid),
		jwt("HS256 with the public key in PEM, trimmed", strings.TrimSpace(publicPEM), hs, good, 401, invalid),
		jwt("HS256 with the public key in PKCS1", pkcs1PEM, hs, good, 401, invalid),
		jwt("HS256 with the public key in DER", string(spki), hs, good, 401, invalid),
		jwt("HS256 with the modulus", string(s.rsa.N.Bytes()), hs, good, 401, invalid),
		jwt("HS256 with the modulus as it stands in the file", b64url(s.rsa.N.Bytes()), hs, good, 401, invalid),
		jwt("HS256 with the key of Ed25519", string(s.ed.Public().(ed25519.PublicKey)), hs, good, 401, invalid),
		jwt("HS256 with the file of keys", s.jwks, hs, good, 401, invalid),
		jwt("HS256 without a key", "", hs, good, 401, invalid),
		jwt("HS256 with the kid of RSA", string(s.rsa.N.Bytes()), `{"alg":"HS256","kid":"rsa"}`, good, 401, invalid),
		jwt("RS256 signed with HMAC", secret, rs, good, 401, invalid),
		jwt("EdDSA signed with HMAC", secret, ed, good, 401, invalid),
		jwt("RS256 signed with Ed25519", "ed", rs, good, 401, invalid),
		jwt("EdDSA signed with RSA", "rsa", ed, good, 401, invalid),
		jwt("PS256", "pss", `{"alg":"PS256"}`, good, 401, invalid),
		jwt("RS256 signed with PSS", "pss", rs, good, 401, invalid),
		jwt("RS512", "rsa", `{"alg":"RS512"}`, good, 401, invalid),
		jwt("HS512", secret, `{"alg":"HS512"}`, good, 401, invalid),
		jwt("ES256", "ed", `{"alg":"ES256","kid":"ec"}`, good, 401, invalid),
		jwt("another key", "bad", ed, good, 401, invalid),
		jwt("another key under a known kid", "bad", `{"alg":"EdDSA","kid":"ed"}`, good, 401, invalid),
		jwt("unknown kid", "ed", `{"alg":"EdDSA","kid":"other"}`, good, 401, invalid),
		jwt("kid of the other key", "ed", `{"alg":"EdDSA","kid":"rsa"}`, good, 401, invalid),
		jwt("kid is a path", "", `{"alg":"HS256","kid":"../../../../dev/null"}`, good, 401, invalid),
		jwt("kid is a query", "ed", `{"alg":"EdDSA","kid":"' OR 1=1 --"}`, good, 401, invalid),
		jwt("kid is a number", "ed", `{"alg":"EdDSA","kid":1}`, good, 401, invalid),
		jwt("kid is an object", "ed", `{"alg":"EdDSA","kid":{}}`, good, 401, invalid),
		jwt("brings its key", "bad", `{"alg":"EdDSA","jwk":`+badJWK+`}`, good, 401, invalid),
		jwt("says where its key is", "bad", `{"alg":"EdDSA","jku":"http://127.0.0.1:1/jwks"}`, good, 401, invalid),
		jwt("brings a certificate", "bad", `{"alg":"EdDSA","x5c":["MIIB"]}`, good, 401, invalid),
		jwt("crit", "ed", `{"alg":"EdDSA","crit":["exp"]}`, good, 401, invalid),
		jwt("b64", "ed", `{"alg":"EdDSA","b64":false,"crit":["b64"]}`, good, 401, invalid),

		jwt("expired", "ed", ed, fmt.Sprintf(`{"exp":%d,"iss":"me","aud":"you"}`, exp-1200), 401, "expired websocket jwt"),
		jwt("expiry in milliseconds, long ago", "ed", ed, `{"exp":-1,"iss":"me","aud":"you"}`, 401, "expired websocket jwt"),
		jwt("not valid yet", "ed", ed, claims(fmt.Sprintf(`,"nbf":%d`, exp)), 401, "websocket jwt is not valid yet"),
		jwt("without expiry", "ed", ed, `{"iss":"me","aud":"you"}`, 401, invalid),
		jwt("two expiries", "ed", ed, claims(`,"exp":9000000000`), 401, invalid),
		jwt("two subjects", "ed", ed, claims(`,"sub":"ann","sub":"root"`), 401, invalid),
		jwt("subject is a list", "ed", ed, claims(`,"sub":["ann"]`), 401, invalid),
		jwt("another issuer", "ed", ed, fmt.Sprintf(`{"exp":%d,"iss":"Me","aud":"you"}`, exp), 401, "websocket jwt issuer mismatch"),
		jwt("another audience", "ed", ed, fmt.Sprintf(`{"exp":%d,"iss":"me","aud":["you "]}`, exp), 401, "websocket jwt audience mismatch"),

		{"signature left out", strings.TrimRight(s.token("ed", ed, good), "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"), 401, invalid},
		{"claims of another token", swapClaims(s.token("ed", ed, good), s.token("bad", ed, claims(`,"sub":"root"`))), 401, invalid},
		{"five parts", "a.b.c.d.e", 401, invalid},
		{"JSON serialization", `{"payload":"e30","signatures":[]}`, 401, invalid},
		{"60 KiB", s.token("bad", ed, claims(`,"x":"`+strings.Repeat("x", 45<<10)+`"`)), 401, invalid},
		{"the secret", secret, 401, invalid},
	}
	token := s.token("ed", ed, good)
	exchanges := []exchange{
		{name: "two headers", request: bearer(token) + "|Authorization: Bearer " + token, status: 401, body: "invalid authorization header"},
		{name: "two headers in other letters", request: bearer(token) + "|AUTHORIZATION: Bearer x", status: 401, body: "invalid authorization header"},
		{name: "a list in one header", request: bearer(token + ", Bearer " + token), status: 401, body: invalid},
		{name: "folded header", request: upgrade + "|Authorization: Bearer|\t" + token, status: 101}, // HTTP joins the lines
		{name: "a header of a proxy", request: upgrade + "|Proxy-Authorization: Bearer " + token, status: 401, body: "missing websocket bearer token"},
		{name: "a cookie", request: upgrade + "|Cookie: token=" + token, status: 401, body: "missing websocket bearer token"},
		{name: "a subprotocol", request: upgrade + "|Sec-WebSocket-Protocol: " + token, status: 401, body: "missing websocket bearer token"},
		{name: "a user in the URL", request: strings.Replace(upgrade, "GET /", "GET http://token:"+token+"@127.0.0.1/", 1), status: 401, body: "missing websocket bearer token"},
		{name: "the query", request: strings.Replace(upgrade, "GET /", "GET /?token="+token, 1), status: 401, body: "missing websocket bearer token"},
		{name: "a NUL", request: bearer(token + "\x00"), status: 400, body: "400 Bad Request"},
		{name: "letters beyond ASCII", request: bearer(token + "é"), status: 401, body: "invalid authorization header"},
		{name: "80 KiB", request: bearer(strings.Repeat("x", 80<<10)), status: 431, body: "431 Request Header Fields Too Large"},
	}
	for _, r := range rows {
		exchanges = append(exchanges, exchange{name: r.name, request: bearer(r.token), status: r.status, body: r.body})
	}
	t.Run("at once", func(t *testing.T) {
		for _, e := range exchanges {
			t.Run(e.name, func(t *testing.T) {
				t.Parallel() // the server takes its time to refuse
				e.check(t, p)
			})
		}
	})
	for _, kept := range []string{secret, token, token[:20]} {
		if strings.Contains(p.stderr.text(), kept) {
			t.Errorf("%q is logged", kept)
		}
	}
}

// swapClaims returns token with the claims of other.
func swapClaims(token, other string) string {
	a, b := strings.Split(token, "."), strings.Split(other, ".")
	return a[0] + "." + b[1] + "." + a[2]
}

// TestHostileCertificates checks --tls-client-ca: a client without a certificate of the
// authority does not even reach HTTP.
func TestHostileCertificates(t *testing.T) {
	ours, others := testkit.NewAuthority(t, "ours"), testkit.NewAuthority(t, "others")
	namesake := testkit.NewAuthority(t, "ours") // the same name, another key
	middle := ours.Intermediate("middle")
	cert, key := ours.Server()
	p := newServer(t, "--listen", "wss://127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ours.File)
	past, future := time.Now().Add(-time.Minute), time.Now().Add(time.Hour/2)
	chained := middle.Client("ann", nil)
	withChain := chained
	withChain.Certificate = append(withChain.Certificate, middle.Own().Certificate[0])
	serial := func(c *x509.Certificate) { c.SerialNumber = big.NewInt(1) }
	none := tls.Certificate{}
	for _, row := range []struct {
		name        string
		certificate tls.Certificate
		min, max    uint16
		status      int // 0 means that the handshake fails
		body        string
	}{
		{"good", ours.Client("ann", nil), 0, 0, 101, ""},
		{"good, TLS 1.2", ours.Client("ann", nil), 0, tls.VersionTLS12, 101, ""},
		{"good, TLS 1.3", ours.Client("ann", nil), tls.VersionTLS13, 0, 101, ""},
		{"good, with the chain", withChain, 0, 0, 101, ""},
		{"name in a URI alone", ours.Client("", func(c *x509.Certificate) { c.URIs = append(c.URIs, mustURL(t, "spiffe://me/ann")) }), 0, 0, 101, ""},
		{"none", none, 0, 0, 0, ""},
		{"none, TLS 1.2", none, 0, tls.VersionTLS12, 0, ""},
		{"TLS 1.1", ours.Client("ann", nil), tls.VersionTLS10, tls.VersionTLS11, 0, ""},
		{"TLS 1.0", ours.Client("ann", nil), tls.VersionTLS10, tls.VersionTLS10, 0, ""},
		{"another authority", others.Client("ann", nil), 0, 0, 0, ""},
		{"another authority of the same name", namesake.Client("ann", nil), 0, 0, 0, ""},
		{"signed by itself", others.Own(), 0, 0, 0, ""},
		{"chain left out", chained, 0, 0, 0, ""},
		{"expired", ours.Client("ann", func(c *x509.Certificate) { c.NotAfter = past }), 0, 0, 0, ""},
		{"expired, TLS 1.2", ours.Client("ann", func(c *x509.Certificate) { c.NotAfter = past }), 0, tls.VersionTLS12, 0, ""},
		{"not valid yet", ours.Client("ann", func(c *x509.Certificate) { c.NotBefore = future }), 0, 0, 0, ""},
		{"for servers", ours.Client("ann", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), 0, 0, 0, ""},
		{"for mail", ours.Client("ann", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageEmailProtection} }), 0, 0, 0, ""},
		{"an unknown critical extension", ours.Client("ann", func(c *x509.Certificate) { c.ExtraExtensions = criticalExtension }), 0, 0, 0, ""},
		{"nameless", ours.Client("", serial), 0, 0, 401, "missing or invalid client certificate"},
		{"another's key", tls.Certificate{Certificate: ours.Client("ann", nil).Certificate, PrivateKey: others.Own().PrivateKey}, 0, 0, 0, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			config := &tls.Config{RootCAs: ours.Roots(), MinVersion: row.min, MaxVersion: row.max}
			// Send the certificate even if the server has not asked for it.
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &row.certificate, nil }
			status, body := askTLS(t, p, config, upgrade)
			if status != row.status || body != row.body {
				t.Errorf("got %d %q, want %d %q", status, body, row.status, row.body)
			}
		})
	}
	t.Run("plain HTTP", func(t *testing.T) {
		exchange{request: upgrade, status: 400, body: "Client sent an HTTP request to an HTTPS server.\n"}.check(t, p)
	})
}

// askTLS sends a request over TLS. The status is 0 if there is no answer.
func askTLS(t *testing.T, p *program, config *tls.Config, request string) (status int, body string) {
	t.Helper()
	raw, err := net.DialTimeout("tcp", p.address(), testkit.Patience)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if err := raw.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
		t.Fatal(err)
	}
	config.ServerName = "127.0.0.1"
	conn := tls.Client(raw, config)
	if _, err := io.WriteString(conn, strings.ReplaceAll(request, "|", "\r\n")+"\r\nHost: 127.0.0.1\r\n\r\n"); err != nil {
		return 0, ""
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, "" // TLS 1.3 reports the failure after the request
	}
	if response.StatusCode == 101 {
		return 101, ""
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// criticalExtension is a critical extension that no program knows.
var criticalExtension = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 99999, 1}, Critical: true, Value: []byte{5, 0}}}

func mustURL(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func hmacSHA256(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}
