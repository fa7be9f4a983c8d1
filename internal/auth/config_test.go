package auth_test

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"execserver/internal/auth"
	"execserver/internal/sys"
	"execserver/internal/testkit"
)

const (
	capabilityToken = "tok-0123456789abc"
	// capabilityDigest is the SHA-256 digest of capabilityToken.
	capabilityDigest = "a9c05a8f00f14067d7e68835118242c0e31647e858dbb34117e8018f94ebeee9"
	sharedSecret     = "0123456789abcdef0123456789abcdef"
)

func newAuthenticator(t testing.TB, cfg auth.Config) *auth.Authenticator {
	t.Helper()
	a, err := auth.New(cfg)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	if a == nil {
		t.Fatal("New: no Authenticator and no error")
	}
	return a
}

func TestNewErrors(t *testing.T) {
	const (
		oneKind    = "there is more than one kind of token; set the fields of one, or put all tokens into TokensFile"
		exclusive  = "the token is given more than once; set only one of Token, TokenFile and TokenSHA256"
		badDigest  = "the digest of a token must be a 64-character hex SHA-256 digest"
		onlySigned = "the fields Issuer, Audience and MaxClockSkew are about signed tokens; set SharedSecretFile or JWKSFile"
		onlyTokens = "AllowQueryToken is about tokens, and there are none"
		nobody     = "there are neither tokens nor a ClientCAFile, so that nobody could connect"
	)
	const unread = "/must/not/be/read"
	missing := filepath.Join(t.TempDir(), "missing")
	fifteen := testkit.Secret(t, "  "+strings.Repeat("x", 15)+"\n")
	open := testkit.Secret(t, capabilityToken)
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	blank := testkit.Secret(t, " \t\r\n\u00a0\n")
	short := testkit.Secret(t, "\n"+sharedSecret[:31]+"\n\n")
	binary := testkit.Secret(t, "a\xffb")
	long := testkit.Secret(t, strings.Repeat("x", 1<<20+1))
	zero := new(int64(0))

	tests := []struct {
		name string
		cfg  auth.Config
		want string
	}{
		{name: "nothing", want: nobody},
		{name: "issuer alone", cfg: auth.Config{Issuer: "i"}, want: onlySigned},
		{name: "audience alone", cfg: auth.Config{Audience: "a"}, want: onlySigned},
		{name: "skew of zero alone", cfg: auth.Config{MaxClockSkewSeconds: zero}, want: onlySigned},
		{name: "query token alone", cfg: auth.Config{AllowQueryToken: true}, want: onlyTokens},
		{name: "query token with certificates", cfg: auth.Config{AllowQueryToken: true, ClientCAFile: unread}, want: onlyTokens},

		{name: "token twice", cfg: auth.Config{Token: capabilityToken, TokenFile: unread}, want: exclusive},
		{name: "file and digest", cfg: auth.Config{TokenFile: unread, TokenSHA256: "zz"}, want: exclusive},
		{name: "short token", cfg: auth.Config{Token: strings.Repeat("x", 15)}, want: "the token has 15 bytes and must have at least 16"},
		{name: "digest not hex", cfg: auth.Config{TokenSHA256: strings.Repeat("z", 64)}, want: badDigest},
		{name: "digest too short", cfg: auth.Config{TokenSHA256: capabilityDigest[2:]}, want: badDigest},
		{name: "digest odd", cfg: auth.Config{TokenSHA256: capabilityDigest + "0"}, want: badDigest},
		{name: "digest too long", cfg: auth.Config{TokenSHA256: capabilityDigest + "00"}, want: badDigest},

		{name: "token and secret", cfg: auth.Config{TokenFile: unread, SharedSecretFile: unread}, want: oneKind},
		{name: "digest and keys", cfg: auth.Config{TokenSHA256: capabilityDigest, JWKSFile: unread}, want: oneKind},
		{name: "token and list", cfg: auth.Config{TokenFile: unread, TokensFile: unread}, want: oneKind},
		{name: "secret and list", cfg: auth.Config{SharedSecretFile: unread, TokensFile: unread}, want: oneKind},
		{name: "issuer of a token", cfg: auth.Config{TokenFile: unread, Issuer: "i"}, want: onlySigned},
		{name: "audience of a token", cfg: auth.Config{TokenFile: unread, Audience: "a"}, want: onlySigned},
		{name: "skew of a token", cfg: auth.Config{TokenFile: unread, MaxClockSkewSeconds: zero}, want: onlySigned},
		{name: "issuer of a list", cfg: auth.Config{TokensFile: unread, Issuer: "i"}, want: onlySigned},

		{name: "unreadable token file", cfg: auth.Config{TokenFile: missing}, want: "failed to read websocket auth secret " + missing + ": " + fsText(t, missing)},
		{name: "path is made absolute", cfg: auth.Config{TokenFile: missing + "/../missing/"}, want: "failed to read websocket auth secret " + missing + ": " + fsText(t, missing)},
		{name: "binary token file", cfg: auth.Config{TokenFile: binary}, want: "failed to read websocket auth secret " + binary + ": stream did not contain valid UTF-8"},
		{name: "endless token file", cfg: auth.Config{TokenFile: long}, want: "failed to read websocket auth secret " + long + ": file is longer than 1048576 bytes"},
		{name: "empty token file", cfg: auth.Config{TokenFile: blank}, want: "websocket auth secret " + blank + " must not be empty"},
		{name: "short token in a file", cfg: auth.Config{TokenFile: fifteen}, want: "websocket bearer token in " + fifteen + " has 15 bytes and must have at least 16; make one: (umask 077; head -c 32 /dev/urandom | base64 > " + fifteen + ")"},
		{name: "token file that others can read", cfg: auth.Config{TokenFile: open}, want: "failed to read websocket auth secret " + open + ": its permissions are 0644, so that others can read or change it; run: chmod 600 " + open},
		{name: "secret file that others can read", cfg: auth.Config{SharedSecretFile: open}, want: "failed to read websocket auth secret " + open + ": its permissions are 0644, so that others can read or change it; run: chmod 600 " + open},
		{name: "unreadable secret file", cfg: auth.Config{SharedSecretFile: missing}, want: "failed to read websocket auth secret " + missing + ": " + fsText(t, missing)},
		{name: "empty secret file", cfg: auth.Config{SharedSecretFile: blank}, want: "websocket auth secret " + blank + " must not be empty"},
		{name: "short secret", cfg: auth.Config{SharedSecretFile: short}, want: "signed websocket bearer secret " + short + " must be at least 32 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, err := auth.New(tt.cfg)
			if err == nil {
				t.Fatalf("New: no error, want %q", tt.want)
			}
			if a != nil {
				t.Error("New: both an Authenticator and an error")
			}
			if err.Error() != tt.want {
				t.Errorf("New:\n got %q\nwant %q", err, tt.want)
			}
		})
	}
}

// fsText is the operating system's error for a file that does not exist, as clients see it.
func fsText(t *testing.T, path string) string {
	t.Helper()
	_, err := os.Open(path)
	if err == nil {
		t.Fatalf("%s exists", path)
	}
	return sys.ErrorText(err)
}

func TestNewWrapsFileError(t *testing.T) {
	_, err := auth.New(auth.Config{TokenFile: filepath.Join(t.TempDir(), "missing")})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("New: %v does not wrap fs.ErrNotExist", err)
	}
}

// TestNilAuthenticatorAllows has no authentication.
func TestNilAuthenticatorAllows(t *testing.T) {
	if refusal := check(nil, request("")); refusal != nil {
		t.Errorf("Check without authentication: %v", refusal)
	}
}

func TestZeroAuthenticatorRefuses(t *testing.T) {
	var a auth.Authenticator
	if check(&a, request("Bearer "+capabilityToken)) == nil {
		t.Error("the zero Authenticator allows a request")
	}
}

// TestNewSources has every way to give the token and the spellings of each.
func TestNewSources(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("USERPROFILE", home)
	t.Chdir(home)
	if err := os.WriteFile(filepath.Join(home, "token"), []byte(capabilityToken), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		cfg  auth.Config
	}{
		{"token", auth.Config{Token: capabilityToken}},
		{"absolute file", auth.Config{TokenFile: filepath.Join(home, "token")}},
		{"relative file", auth.Config{TokenFile: "token"}},
		{"file under home", auth.Config{TokenFile: "~/token"}},
		{"trailing newline", auth.Config{TokenFile: testkit.Secret(t, capabilityToken+"\n")}},
		{"white space around", auth.Config{TokenFile: testkit.Secret(t, "\t \u00a0"+capabilityToken+"\u2003\r\n\r\n")}},
		{"digest", auth.Config{TokenSHA256: capabilityDigest}},
		{"digest in upper case", auth.Config{TokenSHA256: strings.ToUpper(capabilityDigest)}},
		{"spaces around digest", auth.Config{TokenSHA256: " " + capabilityDigest + "\n"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := newAuthenticator(t, tt.cfg)
			if refusal := check(a, request("Bearer "+capabilityToken)); refusal != nil {
				t.Errorf("the token is refused: %v", refusal)
			}
			if check(a, request("Bearer x"+capabilityToken)) == nil {
				t.Error("another token is accepted")
			}
		})
	}
}

// TestShortToken covers a token that is known by its digest alone.
func TestShortToken(t *testing.T) {
	const short = "fifteen-letters"
	digest := fmt.Sprintf("%x", sha256.Sum256([]byte(short)))
	a := newAuthenticator(t, auth.Config{TokenSHA256: digest})
	for token, want := range map[string]string{
		short:       "websocket bearer token is right, but shorter than 16 bytes; the server needs a longer one",
		short[1:]:   invalidToken,
		short + "s": invalidToken,
	} {
		if got := verdict(a, request("Bearer "+token)); got != want {
			t.Errorf("%q: got %q, want %q", token, got, want)
		}
	}
}

// TestSecretsStayOutOfErrors makes every error that can arise with a secret at hand, with a
// marker in all the secrets.
func TestSecretsStayOutOfErrors(t *testing.T) {
	const marker = "hush-hush"
	long := marker + strings.Repeat("x", 32)
	configs := []auth.Config{
		{Token: marker},
		{TokenSHA256: marker},
		{TokenSHA256: marker, TokenFile: testkit.Secret(t, marker)},
		{TokenSHA256: marker, SharedSecretFile: testkit.Secret(t, marker)},
		{TokenSHA256: marker},
		{SharedSecretFile: testkit.Secret(t, marker)},
		{TokenFile: testkit.Secret(t, marker+"\xff")},
		{TokenFile: testkit.Secret(t, strings.Repeat(marker, 1<<18))},
	}
	for _, cfg := range configs {
		_, err := auth.New(cfg)
		if err == nil {
			t.Errorf("New(%+v): no error", cfg)
			continue
		}
		if strings.Contains(err.Error(), marker) {
			t.Errorf("the secret is in the error: %v", err)
		}
	}

	authenticators := []*auth.Authenticator{
		newAuthenticator(t, auth.Config{TokenFile: testkit.Secret(t, long), AllowQueryToken: true}),
		newAuthenticator(t, auth.Config{SharedSecretFile: testkit.Secret(t, long), AllowQueryToken: true, Issuer: marker, Audience: marker}),
	}
	requests := map[string]*http.Request{
		"token":       request("Bearer " + marker),
		"long token":  request("Bearer " + long + "!"),
		"raw":         request(marker),
		"scheme":      request(marker + " x"),
		"query":       queryRequest("token=" + marker),
		"bad query":   queryRequest("token=" + marker + "%zz"),
		"two queries": queryRequest("token=" + marker + "&token=" + marker),
		"issuer":      request("Bearer " + sign(long, hs256, expiring(60))),
		"expired":     request("Bearer " + sign(long, hs256, expiring(-60))),
		"bad claim":   request("Bearer " + sign(long, hs256, `{"exp":"`+marker+`"}`)),
	}
	for name, r := range requests {
		for _, a := range authenticators {
			refusal := check(a, r)
			if refusal == nil {
				t.Errorf("%s: accepted", name)
				continue
			}
			if strings.Contains(refusal.Error(), marker) {
				t.Errorf("%s: the secret is in the refusal: %v", name, refusal)
			}
		}
	}
}

// TestTokensFileErrors covers mistakes in a tokens file, and in the files of keys.
func TestTokensFileErrors(t *testing.T) {
	const entry = "[[token]]\nname = \"a\"\nsha256 = \"" + capabilityDigest + "\"\nscope = [\"full\"]\n"
	scoped := func(text string) string { return strings.Replace(entry, "scope = [\"full\"]", text, 1) }
	rsa := func(bits int) string {
		n := make([]byte, bits/8)
		n[0], n[len(n)-1] = 0x80, 1
		return base64.RawURLEncoding.EncodeToString(n)
	}
	jwks := func(keys string) string {
		return fmt.Sprintf("[[token]]\nname = \"a\"\njwks = %q\n", testkit.Secret(t, `{"keys":[`+keys+`]}`))
	}
	for _, test := range []struct{ name, text, want string }{
		{"not TOML", "[[token]\nhush", "line 2 cannot be understood"},
		{"no name", "[[token]]\nsha256 = \"" + capabilityDigest + "\"", "name must have"},
		{"a colon in the name", strings.Replace(entry, `"a"`, `"uid:0"`, 1), "name must have"},
		{"nothing to know it by", "[[token]]\nname = \"a\"", "exactly one of"},
		{"two things to know it by", entry + "secret = \"s\"", "exactly one of"},
		{"the token itself", "[[token]]\nname = \"a\"\nsha256 = \"hush\"", "sha256 must have 64"},
		{"twice", entry + entry, "that of another token"},
		{"the same token under another name", entry + strings.Replace(strings.Replace(entry, `"a"`, `"b"`, 1), capabilityDigest, strings.ToUpper(capabilityDigest), 1), "that of another token"},
		{"an unknown key", entry + "hush = true", `unknown key "token.hush"`},
		{"an unknown key beside", "hush = true\n" + entry, `unknown key "hush"`},
		{"a key in other letters", entry + "Expires = 2030-01-01T00:00:00Z", `unknown key "token.Expires"`},
		{"expiry as a string", entry + "expires = \"2030\"", "line 5 cannot"},
		{"an issuer of a token that has none", entry + "issuer = \"me\"", "go with secret and jwks"},
		{"a certificate without TLS", "[[token]]\nname = \"a\"\ncertificate = \"a\"", "needs the authorities of client certificates"},
		{"no scope", scoped(""), "scope must say"},
		{"an empty scope", scoped("scope = []"), "scope must say"},
		{"a scope that is no list", scoped("scope = \"full\""), "incompatible types"},
		{"an unknown scope", scoped("scope = [\"all\"]"), "unknown scope \"all\""},
		{"a scope in other letters", scoped("scope = [\"Full\"]"), "unknown scope \"Full\""},
		{"everything and something", scoped("scope = [\"full\", \"exec\"]"), "full has files and exec in it"},
		{"files without a root", scoped("scope = [\"files\"]"), "root goes with the scope files"},
		{"a root without files", scoped("scope = [\"exec\"]\nroot = \"/\""), "root goes with the scope files"},
		{"a relative root", scoped("scope = [\"files\"]\nroot = \"srv\""), "must be absolute"},
		{"an unknown access", scoped("scope = [\"files\"]\nroot = \"/srv\"\naccess = \"all\""), "access must be read or write"},
		{"access without files", scoped("scope = [\"exec\"]\naccess = \"read\""), "access goes with"},
		{"commands of what may do everything", entry + "commands = [[\"/bin/ls\"]]", "go with the scope exec"},
		{"a command without a path", scoped("scope = [\"exec\"]\ncommands = [[\"ls\"]]"), "begins with an absolute path"},
		{"an empty command", scoped("scope = [\"exec\"]\ncommands = [[]]"), "begins with an absolute path"},
		{"any command by dots", scoped("scope = [\"exec\"]\ncommands = [[\"...\"]]"), "begins with an absolute path"},
		{"dots in the middle", scoped("scope = [\"exec\"]\ncommands = [[\"/bin/ls\", \"...\", \"a\"]]"), "as its last element"},
		{"a life that is no time", entry + "max_session = \"8\"", "max_session must be a time"},
		{"a life of nothing", entry + "max_session = \"0s\"", "max_session must be a time"},
		{"a relative path of the sandbox", entry + "[token.sandbox]\nwrite = [\".\"]", "must be absolute"},
		{"an unknown key of the sandbox", entry + "[token.sandbox]\nwrites = [\"/\"]", "unknown key"},
		{"keys missing", "[[token]]\nname = \"a\"\njwks = \"missing\"", "no such file"},
		{"keys empty", jwks(``), "no key for EdDSA"},
		{"a shared secret among the keys", jwks(`{"kty":"oct","k":"aHVzaA"}`), "it is secret"},
		{"a private key among the keys", jwks(`{"kty":"OKP","crv":"Ed25519","x":"a","d":"aHVzaA"}`), "it is secret"},
		{"half a key", jwks(`{"kty":"OKP","crv":"Ed25519","x":"AAAA"}`), "x is not a public key"},
		{"a short RSA key", jwks(`{"kty":"RSA","n":"` + rsa(1024) + `","e":"AQAB"}`), "it has 1024 bits"},
		{"a long RSA key", jwks(`{"kty":"RSA","n":"` + rsa(16384) + `","e":"AQAB"}`), "it has 16384 bits"},
		{"an exponent of one", jwks(`{"kty":"RSA","n":"` + rsa(2048) + `","e":"AQ"}`), "e is not a public exponent"},
		{"an even exponent", jwks(`{"kty":"RSA","n":"` + rsa(2048) + `","e":"BA"}`), "e is not a public exponent"},
		{"keys for something else", jwks(`{"kty":"RSA","use":"enc","n":"` + rsa(2048) + `","e":"AQAB"},{"kty":"EC","crv":"P-256"}`), "no key for EdDSA"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := auth.New(auth.Config{TokensFile: testkit.Secret(t, test.text)})
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\"hush\"") && !strings.Contains(test.want, "hush") {
				t.Errorf("got %v, want %q in it", err, test.want)
			}
		})
	}
}
