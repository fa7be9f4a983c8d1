package auth_test

import (
	"crypto"
	"crypto/hmac"
	_ "crypto/sha256"
	_ "crypto/sha512"
	"encoding/base64"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"execserver/internal/auth"
	"execserver/internal/testkit"
)

// now is the time of every Authenticator under test.
var now = time.Unix(1_800_000_000, 999_999_999)

const hs256 = `{"alg":"HS256","typ":"JWT"}`

// sign makes a token by hand, with no library and no opinion on what is in it.
func sign(secret, header, payload string) string {
	return signWith(crypto.SHA256, secret, header, payload)
}

func signWith(hash crypto.Hash, secret, header, payload string) string {
	text := b64(header) + "." + b64(payload)
	return text + "." + signature(hash, secret, text)
}

func signature(hash crypto.Hash, secret, text string) string {
	mac := hmac.New(hash.New, []byte(secret))
	mac.Write([]byte(text))
	return b64(string(mac.Sum(nil)))
}

func b64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// expiring is a payload that expires in so many seconds, with more claims if given.
func expiring(in int64, more ...string) string {
	return fmt.Sprintf(`{"exp":%d%s}`, now.Unix()+in, strings.Join(more, ""))
}

func newSigned(t testing.TB, cfg auth.Config) *auth.Authenticator {
	t.Helper()
	cfg.SharedSecretFile = testkit.Secret(t, sharedSecret+"\n")
	cfg.Now = func() time.Time { return now }
	return newAuthenticator(t, cfg)
}

// TestCheckTokenForm is about everything but the claims.
func TestCheckTokenForm(t *testing.T) {
	good := sign(sharedSecret, hs256, expiring(60))
	parts := strings.Split(good, ".")
	header := func(h string) string { return sign(sharedSecret, h, expiring(60)) }

	// Both lengths leave a remainder when divided by three, so they take padding.
	paddedHeader := base64.URLEncoding.EncodeToString([]byte(`{"alg":"HS256"} `)) + "." + parts[1]
	paddedHeader += "." + signature(crypto.SHA256, sharedSecret, paddedHeader)
	paddedClaims := parts[0] + "." + base64.URLEncoding.EncodeToString([]byte(`{"exp":9000000000}  `))
	paddedClaims += "." + signature(crypto.SHA256, sharedSecret, paddedClaims)

	if !strings.Contains(paddedHeader, "==.") || !strings.Contains(paddedClaims, "=.") {
		t.Fatal("the padded tokens have no padding")
	}

	// A signature with a character that the two base64 alphabets disagree about.
	var urlAlphabet string
	for i := 0; !strings.ContainsAny(urlAlphabet, "-_"); i++ {
		urlAlphabet = sign(sharedSecret, hs256, expiring(60, fmt.Sprintf(`,"x":%d`, i)))
	}
	stdAlphabet := strings.NewReplacer("-", "+", "_", "/").Replace(urlAlphabet)

	tests := []struct {
		name  string
		token string
		want  string
	}{
		{"good", good, allowed},
		{"no typ", header(`{"alg":"HS256"}`), allowed},
		{"other typ", header(`{"alg":"HS256","typ":"x"}`), allowed},
		{"unknown header", header(`{"alg":"HS256","kid":"1","zip":"DEF","x":{}}`), allowed},
		{"url alphabet", urlAlphabet, allowed},

		{"HS384", signWith(crypto.SHA384, sharedSecret, `{"alg":"HS384"}`, expiring(60)), invalidJWT},
		{"HS512", signWith(crypto.SHA512, sharedSecret, `{"alg":"HS512"}`, expiring(60)), invalidJWT},
		{"HS384 signed with SHA-256", header(`{"alg":"HS384"}`), invalidJWT},
		{"none without signature", b64(`{"alg":"none"}`) + "." + parts[1] + ".", invalidJWT},
		{"none with signature", header(`{"alg":"none"}`), invalidJWT},
		{"None", b64(`{"alg":"None"}`) + "." + parts[1] + ".", invalidJWT},
		{"RS256", header(`{"alg":"RS256"}`), invalidJWT},
		{"unknown alg", header(`{"alg":"XX999"}`), invalidJWT},
		{"alg in lower case", header(`{"alg":"hs256"}`), invalidJWT},
		{"name alg in upper case", header(`{"ALG":"HS256"}`), invalidJWT},
		{"no alg", header(`{}`), invalidJWT},
		{"alg is a number", header(`{"alg":1}`), invalidJWT},
		{"header is null", header(`null`), invalidJWT},
		{"header is an array", header(`["HS256"]`), invalidJWT},
		{"header is not JSON", header(`{"alg":"HS256"`), invalidJWT},

		{"crit", header(`{"alg":"HS256","crit":["b64"],"b64":false}`), invalidJWT},
		{"crit, unknown", header(`{"alg":"HS256","crit":["x"],"x":1}`), invalidJWT},
		{"crit, empty", header(`{"alg":"HS256","crit":[]}`), invalidJWT},
		{"crit, null", header(`{"alg":"HS256","crit":null}`), invalidJWT},
		{"crit, twice", header(`{"alg":"HS256","crit":["x"],"crit":null}`), invalidJWT},
		{"crit, by escape", header(`{"alg":"HS256","\u0063rit":["x"]}`), invalidJWT},
		{"crit in the claims means nothing", sign(sharedSecret, hs256, expiring(60, `,"crit":["x"]`)), allowed},

		{"wrong key", sign(strings.Repeat("x", 32), hs256, expiring(60)), invalidJWT},
		{"key with the newline of the file", sign(sharedSecret+"\n", hs256, expiring(60)), invalidJWT},
		{"no signature", parts[0] + "." + parts[1] + ".", invalidJWT},
		{"signature of other claims", parts[0] + "." + b64(expiring(61)) + "." + parts[2], invalidJWT},
		{"signature cut short", good[:len(good)-4], invalidJWT},
		{"signature with unused bits set", good[:len(good)-1] + nextLetter(good[len(good)-1]), invalidJWT},
		{"signature in the standard alphabet", stdAlphabet, invalidJWT},
		{"padding in header", paddedHeader, invalidJWT},
		{"padding in claims", paddedClaims, invalidJWT},
		{"padding in signature", good + "=", invalidJWT},
		{"one part", "junk", invalidJWT},
		{"two parts", parts[0] + "." + parts[1], invalidJWT},
		{"four parts", good + ".x", invalidJWT},
		{"dot at the end", good + ".", invalidJWT},
		{"empty parts", "..", invalidJWT},
		{"space inside", parts[0] + ". " + parts[1] + "." + parts[2], invalidJWT},
		{"the secret itself", sharedSecret, invalidJWT},
		{"longest", sign(sharedSecret, hs256, expiring(60, `,"x":"`+strings.Repeat("x", 48<<10-120)+`"`)), allowed},
		{"too long", sign(sharedSecret, hs256, expiring(60, `,"x":"`+strings.Repeat("x", 48<<10)+`"`)), invalidJWT},
	}
	a := newSigned(t, auth.Config{AllowQueryToken: true})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := verdict(a, request("Bearer "+tt.token)); got != tt.want {
				t.Errorf("header: got %q, want %q", got, tt.want)
			}
			query := "token=" + strings.NewReplacer("+", "%2B", " ", "%20").Replace(tt.token)
			if got := verdict(a, queryRequest(query)); got != tt.want {
				t.Errorf("query: got %q, want %q", got, tt.want)
			}
		})
	}

	// base64 decoders skip line breaks; in a query they could get that far.
	if got := verdict(a, queryRequest("token="+parts[0]+"."+parts[1]+"."+parts[2][:9]+"%0A"+parts[2][9:])); got != invalidQuery {
		t.Errorf("line break inside: got %q, want %q", got, invalidQuery)
	}
}

// nextLetter is the letter after c, which differs in the lowest bit of the six where c has
// that bit clear. The last letter of an HS256 signature always has.
func nextLetter(c byte) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	i := strings.IndexByte(alphabet, c)
	return alphabet[i|1 : i|1+1]
}

func TestCheckClaims(t *testing.T) {
	const maxInt, minInt = "9223372036854775807", "-9223372036854775808"
	tests := []struct {
		name    string
		payload string
		want    string
	}{
		{"exp within skew", expiring(-30), allowed},
		{"exp beyond skew", expiring(-31), expiredJWT},
		{"exp missing", `{}`, invalidJWT},
		{"exp null", `{"exp":null}`, invalidJWT},
		{"exp string", `{"exp":"1800000060"}`, invalidJWT},
		{"exp fractional", `{"exp":1800000060.5}`, invalidJWT},
		{"exp with .0", `{"exp":1800000060.0}`, invalidJWT},
		{"exp with exponent", `{"exp":18e8}`, invalidJWT},
		{"exp bool", `{"exp":true}`, invalidJWT},
		{"exp array", `{"exp":[1800000060]}`, invalidJWT},
		{"exp with leading zero", `{"exp":01800000060}`, invalidJWT},
		{"exp negative", `{"exp":-1}`, expiredJWT},
		{"exp largest", `{"exp":` + maxInt + `}`, allowed},
		{"exp smallest", `{"exp":` + minInt + `}`, expiredJWT},
		{"exp too large", `{"exp":9223372036854775808}`, invalidJWT},
		{"exp too small", `{"exp":-9223372036854775809}`, invalidJWT},
		{"exp far too large", `{"exp":1e400}`, invalidJWT},
		{"exp twice", expiring(60, `,"exp":1800000060`), invalidJWT},
		{"exp twice by escape", expiring(60, `,"\u0065xp":1800000060`), invalidJWT},
		{"exp by escape", `{"\u0065xp":1800000060}`, allowed},
		{"exp in upper case", `{"EXP":1800000060}`, invalidJWT},
		{"exp also in upper case", expiring(60, `,"EXP":"x"`), allowed},

		{"nbf in the past", expiring(60, `,"nbf":1`), allowed},
		{"nbf within skew", expiring(60, `,"nbf":1800000030`), allowed},
		{"nbf beyond skew", expiring(60, `,"nbf":1800000031`), earlyJWT},
		{"nbf null", expiring(60, `,"nbf":null`), allowed},
		{"nbf string", expiring(60, `,"nbf":"1"`), invalidJWT},
		{"nbf fractional", expiring(60, `,"nbf":1.5`), invalidJWT},
		{"nbf smallest", expiring(60, `,"nbf":`+minInt), allowed},
		{"nbf largest", expiring(60, `,"nbf":`+maxInt), earlyJWT},
		{"nbf too large", expiring(60, `,"nbf":9223372036854775808`), invalidJWT},
		{"expired and early", expiring(-60, `,"nbf":1900000000`), expiredJWT},

		{"iat junk", expiring(60, `,"iat":"x","jti":{}`), allowed},
		{"sub number", expiring(60, `,"sub":1`), invalidJWT},
		{"sub twice", expiring(60, `,"sub":"a","sub":"b"`), invalidJWT},
		{"sub null", expiring(60, `,"sub":null`), allowed},
		{"sub too long", expiring(60, `,"sub":"`+strings.Repeat("s", 600)+`"`), invalidJWT},
		{"iat in the future", expiring(60, `,"iat":1900000000`), allowed},
		{"iss any", expiring(60, `,"iss":"z"`), allowed},
		{"iss null", expiring(60, `,"iss":null`), allowed},
		{"iss number", expiring(60, `,"iss":1`), invalidJWT},
		{"iss not UTF-8", expiring(60, ",\"iss\":\"\xff\""), invalidJWT},
		{"other claim not UTF-8", expiring(60, ",\"x\":\"\xff\""), allowed},
		{"other claim twice", expiring(60, `,"x":1,"x":2`), allowed},
		{"other claim deep", expiring(60, `,"x":`+strings.Repeat("[", 200)+strings.Repeat("]", 200)), allowed},
		{"other claim too deep", expiring(60, `,"x":`+strings.Repeat("[", 20000)), invalidJWT},
		{"aud any", expiring(60, `,"aud":"z"`), allowed},
		{"aud array", expiring(60, `,"aud":["y","z"]`), allowed},
		{"aud empty array", expiring(60, `,"aud":[]`), allowed},
		{"aud null", expiring(60, `,"aud":null`), allowed},
		{"aud number", expiring(60, `,"aud":1`), invalidJWT},
		{"aud object", expiring(60, `,"aud":{}`), invalidJWT},
		{"aud array with a number", expiring(60, `,"aud":["z",1]`), invalidJWT},
		{"aud array with null", expiring(60, `,"aud":["z",null]`), invalidJWT},
		{"aud array of arrays", expiring(60, `,"aud":[["z"]]`), invalidJWT},
		{"aud twice", expiring(60, `,"aud":"z","aud":"z"`), invalidJWT},

		{"white space", " {\n\"exp\" :\t1800000060 } \n", allowed},
		{"empty", ``, invalidJWT},
		{"null", `null`, invalidJWT},
		{"array", `[1800000060]`, invalidJWT},
		{"string", `"exp"`, invalidJWT},
		{"not JSON", `{"exp":1800000060`, invalidJWT},
		{"data after", expiring(60) + " x", invalidJWT},
		{"two objects", expiring(60) + expiring(60), invalidJWT},
		{"byte order mark", "\ufeff" + expiring(60), invalidJWT},
	}
	a := newSigned(t, auth.Config{})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := request("Bearer " + sign(sharedSecret, hs256, tt.payload))
			if got := verdict(a, r); got != tt.want {
				t.Errorf("%s: got %q, want %q", tt.payload, got, tt.want)
			}
		})
	}
}

func TestCheckIssuerAndAudience(t *testing.T) {
	tests := []struct {
		name   string
		claims string
		want   string
	}{
		{"both", `,"iss":"I","aud":"A"`, allowed},
		{"audience in array", `,"iss":"I","aud":["B","A"]`, allowed},
		{"nothing", ``, issuerMismatch},
		{"no issuer", `,"aud":"A"`, issuerMismatch},
		{"issuer null", `,"iss":null,"aud":"A"`, issuerMismatch},
		{"both wrong", `,"iss":"i","aud":"B"`, issuerMismatch},
		{"space after issuer", `,"iss":"I ","aud":"A"`, issuerMismatch},
		{"no audience", `,"iss":"I"`, audMismatch},
		{"audience null", `,"iss":"I","aud":null`, audMismatch},
		{"other audience", `,"iss":"I","aud":"a"`, audMismatch},
		{"others in array", `,"iss":"I","aud":["B"]`, audMismatch},
		{"empty array", `,"iss":"I","aud":[]`, audMismatch},
		{"time comes first", `,"nbf":1900000000`, earlyJWT},
	}
	// White space around the configured values does not count.
	for _, cfg := range []auth.Config{{Issuer: "I", Audience: "A"}, {Issuer: " I\t", Audience: "\nA "}} {
		a := newSigned(t, cfg)
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				r := request("Bearer " + sign(sharedSecret, hs256, expiring(60, tt.claims)))
				if got := verdict(a, r); got != tt.want {
					t.Errorf("got %q, want %q", got, tt.want)
				}
			})
		}
	}

	a := newSigned(t, auth.Config{Issuer: " ", Audience: " "})
	if got := verdict(a, request("Bearer "+sign(sharedSecret, hs256, expiring(60)))); got != allowed {
		t.Errorf("blank issuer and audience: got %q, want them ignored", got)
	}
}

func TestCheckClockSkew(t *testing.T) {
	tests := []struct {
		skew    int64
		payload string
		want    string
	}{
		{0, expiring(0), allowed},
		{0, expiring(-1), expiredJWT},
		{0, expiring(60, `,"nbf":1800000000`), allowed},
		{0, expiring(60, `,"nbf":1800000001`), earlyJWT},
		{3600, expiring(-3600), allowed},
		{3600, expiring(-3601), expiredJWT},
		{3600, expiring(60, `,"nbf":1800003600`), allowed},
		{3600, expiring(60, `,"nbf":1800003601`), earlyJWT},
		// Over 292 years: more nanoseconds than fit in a time.Duration.
		{10_000_000_000, `{"exp":0}`, allowed},
		{10_000_000_000, expiring(60, `,"nbf":11800000000`), allowed},
		{10_000_000_000, expiring(60, `,"nbf":11800000001`), earlyJWT},
		{math.MaxInt64, `{"exp":0}`, allowed},
		{math.MaxInt64, `{"exp":-9223372036854775808}`, expiredJWT},
		{math.MaxInt64, `{"exp":9223372036854775807,"nbf":9223372036854775807}`, allowed},
		{math.MaxInt64, expiring(60, `,"nbf":-9223372036854775808`), allowed},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%d %s", tt.skew, tt.payload), func(t *testing.T) {
			a := newSigned(t, auth.Config{MaxClockSkewSeconds: &tt.skew})
			if got := verdict(a, request("Bearer "+sign(sharedSecret, hs256, tt.payload))); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestSystemClock goes without a clock of its own.
func TestSystemClock(t *testing.T) {
	a := newAuthenticator(t, auth.Config{SharedSecretFile: testkit.Secret(t, sharedSecret)})
	for in, want := range map[time.Duration]string{time.Hour: allowed, -time.Hour: expiredJWT} {
		payload := fmt.Sprintf(`{"exp":%d}`, time.Now().Add(in).Unix())
		if got := verdict(a, request("Bearer "+sign(sharedSecret, hs256, payload))); got != want {
			t.Errorf("exp in %v: got %q, want %q", in, got, want)
		}
	}
}

// TestPrincipal checks the principal of a token, and when it expires.
func TestPrincipal(t *testing.T) {
	a := newSigned(t, auth.Config{})
	end := now.Truncate(time.Second).Add(91 * time.Second) // with the skew, and the whole last second
	for claims, want := range map[string]string{
		``:                                "jwt::",
		`,"sub":"ann"`:                    "jwt::ann",
		`,"iss":"me","sub":"ann"`:         "jwt:me:ann",
		`,"iss":"me:ann"`:                 "jwt:me%3Aann:",
		`,"sub":"a\nlevel=ERROR msg=\"x"`: "jwt::a%0Alevel%3DERROR+msg%3D%22x",
	} {
		p, refusal := a.Authenticate(request("Bearer " + sign(sharedSecret, hs256, expiring(60, claims))))
		if refusal != nil {
			t.Errorf("%s: %v", claims, refusal)
			continue
		}
		if p.Name != want || !p.Expires.Equal(end) {
			t.Errorf("%s: got %q until %v, want %q until %v", claims, p.Name, p.Expires, want, end)
		}
	}
}
