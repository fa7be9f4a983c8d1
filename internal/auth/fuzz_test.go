package auth_test

import (
	"crypto"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"execserver/internal/auth"
	"execserver/internal/testkit"
)

// FuzzCheck presents arbitrary headers and queries. The oracle is a pattern: exactly the
// token is accepted, and only where it may stand.
func FuzzCheck(f *testing.F) {
	for _, header := range []string{
		"", "Bearer tok-0123456789abc", "bearer \t tok-0123456789abc ", "Bearer", "Bearer tok-0123456789abc x", "Basic dTpw",
		"Bearer\ttok-0123456789abc", "Bearer tok-0123456789abc\n", "Bearer tok-0123456789abc\u00a0", "tok-0123456789abc",
	} {
		f.Add(true, header, "token=tok-0123456789abc")
	}
	for _, query := range []string{
		"", "token=tok-0123456789abc", "token=%74ok-0123456789abc&x=%zz", "token=+tok-0123456789abc+", "token=tok-0123456789abc&token=",
		"token=tok-0123456789abc;", "token=tok-0123456789abc%0A", "%74oken=tok-0123456789abc", "token",
	} {
		f.Add(false, "", query)
	}
	good := regexp.MustCompile(`^[ \t]*(?i:bearer) [ \t]*tok-0123456789abc[ \t]*$`)
	off := newAuthenticator(f, auth.Config{TokenSHA256: capabilityDigest})
	on := newAuthenticator(f, auth.Config{TokenSHA256: capabilityDigest, AllowQueryToken: true})

	f.Fuzz(func(t *testing.T, hasHeader bool, header, query string) {
		r := queryRequest(query)
		wantOff, wantOn := false, false
		if hasHeader {
			r.Header["Authorization"] = []string{header}
			wantOff = good.MatchString(header)
			wantOn = wantOff
		} else {
			values, _ := url.ParseQuery(query)
			tokens := values["token"]
			wantOn = len(tokens) == 1 && strings.Trim(tokens[0], " \t") == capabilityToken
		}
		if got := check(off, r); (got == nil) != wantOff {
			t.Errorf("header only: %v, want accepted = %t", got, wantOff)
		}
		if got := check(on, r); (got == nil) != wantOn {
			t.Errorf("header or query: %v, want accepted = %t", got, wantOn)
		}
		// A second header is never better than one.
		r.Header.Add("Authorization", header)
		if hasHeader && (check(off, r) == nil || check(on, r) == nil) {
			t.Error("two headers: accepted")
		}
	})
}

// FuzzCheckJWT presents arbitrary tokens. The oracle computes the signature itself: what
// is accepted must be signed, in the one spelling that base64 allows.
func FuzzCheckJWT(f *testing.F) {
	good := sign(sharedSecret, hs256, `{"exp":9000000000}`)
	f.Add(good)
	f.Add(good + "=")
	f.Add(good[:len(good)-1])
	f.Add(sign(sharedSecret, `{"alg":"none"}`, `{"exp":9000000000}`))
	f.Add(signWith(crypto.SHA512, sharedSecret, `{"alg":"HS512"}`, `{"exp":9000000000}`))
	f.Add("..")
	a := newSigned(f, auth.Config{AllowQueryToken: true})

	f.Fuzz(func(t *testing.T, token string) {
		byHeader := check(a, request("Bearer "+token))
		byQuery := check(a, queryRequest("token="+url.QueryEscape(token)))
		if (byHeader == nil) != (byQuery == nil) {
			t.Errorf("header: %v, query: %v", byHeader, byQuery)
		}
		if byHeader != nil {
			return
		}
		token = strings.Trim(token, " \t")
		dot := strings.LastIndexByte(token, '.')
		if dot < 0 || token[dot+1:] != signature(crypto.SHA256, sharedSecret, token[:dot]) {
			t.Errorf("accepted without a good signature: %q", token)
		}
	})
}

// FuzzCheckClaims signs arbitrary claims. The oracle reads them with encoding/json into a
// map and exact numbers.
func FuzzCheckClaims(f *testing.F) {
	for _, payload := range []string{
		`{"exp":9000000000}`, `{"exp":9000000000,"nbf":1,"iss":"I","aud":["A"]}`, `{"exp":1e10}`,
		`{"exp":9000000000.0}`, `{"exp":"9"}`, `{"exp":9000000000,"exp":1}`, `null`, `[]`, `{"EXP":9000000000}`,
		`{"exp":9223372036854775807,"aud":null,"nbf":-9223372036854775808}`, `{"exp":9000000000}{}`,
	} {
		f.Add(payload)
	}
	a := newSigned(f, auth.Config{})
	named := newSigned(f, auth.Config{Issuer: "I", Audience: "A"})
	latest := big.NewInt(now.Unix() - 30)

	f.Fuzz(func(t *testing.T, payload string) {
		r := request("Bearer " + sign(sharedSecret, hs256, payload))
		accepted, namedAccepted := check(a, r) == nil, check(named, r) == nil
		if namedAccepted && !accepted {
			t.Error("accepted only with more conditions")
		}
		if !accepted {
			return
		}
		var claims map[string]json.RawMessage
		if err := json.Unmarshal([]byte(payload), &claims); err != nil {
			t.Fatalf("accepted: %v", err)
		}
		exp, ok := new(big.Int).SetString(string(claims["exp"]), 10)
		if !ok || exp.Cmp(latest) < 0 {
			t.Errorf("accepted with exp %s", claims["exp"])
		}
		if namedAccepted {
			var iss string
			if err := json.Unmarshal(claims["iss"], &iss); err != nil || iss != "I" {
				t.Errorf("accepted with iss %s", claims["iss"])
			}
			if len(claims["aud"]) == 0 || !regexp.MustCompile(`"(A|\\u0041)"`).Match(claims["aud"]) {
				t.Errorf("accepted with aud %s", claims["aud"])
			}
		}
	})
}

// FuzzJWTHeader gives arbitrary headers to tokens that are signed with a key of each kind.
// The oracle: what is accepted names the method of the key that has signed it, and nothing
// critical.
func FuzzJWTHeader(f *testing.F) {
	for _, header := range []string{
		`{"alg":"HS256"}`, `{"alg":"EdDSA"}`, `{"alg":"EdDSA","kid":"ed"}`, `{"alg":"EdDSA","kid":"x"}`, `{"alg":"none"}`,
		`{"alg":"HS256","alg":"EdDSA"}`, `{"alg":"HS256","crit":null}`, `{"alg":"RS256"}`, `{"Alg":"HS256"}`,
	} {
		f.Add(header)
	}
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		f.Fatal(err)
	}
	jwks := fmt.Sprintf(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"ed","x":%q}]}`, base64.RawURLEncoding.EncodeToString(public))
	a := newSigned(f, auth.Config{JWKSFile: testkit.Secret(f, jwks)})
	f.Fuzz(func(t *testing.T, header string) {
		text := b64(header) + "." + b64(`{"exp":9000000000}`)
		for method, signature := range map[string]string{
			"HS256": signature(crypto.SHA256, sharedSecret, text),
			"EdDSA": base64.RawURLEncoding.EncodeToString(ed25519.Sign(private, []byte(text))),
			"":      signature(crypto.SHA256, string(public), text), // the public key as a secret
		} {
			if check(a, request("Bearer "+text+"."+signature)) != nil {
				continue
			}
			var h map[string]any
			if err := json.Unmarshal([]byte(header), &h); err != nil || h["alg"] != method || method == "" {
				t.Errorf("%s, signed with %s: accepted", header, method)
			}
			if _, ok := h["crit"]; ok {
				t.Errorf("%s: accepted although something is critical", header)
			}
			if kid, ok := h["kid"]; ok && method == "EdDSA" && kid != nil && kid != "ed" && kid != "" {
				t.Errorf("%s: accepted with another key id", header)
			}
		}
	})
}
