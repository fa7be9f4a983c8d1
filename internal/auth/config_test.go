package auth_test

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"execserver/internal/auth"
	"execserver/internal/errno"
)

const (
	capabilityToken = "tok-0123456789abc"
	// capabilityDigest is the SHA-256 digest of capabilityToken.
	capabilityDigest = "a9c05a8f00f14067d7e68835118242c0e31647e858dbb34117e8018f94ebeee9"
	sharedSecret     = "0123456789abcdef0123456789abcdef"
)

// writeFile makes a file with the content and returns its absolute path.
func writeFile(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newAuthenticator(t testing.TB, cfg auth.Config) *auth.Authenticator {
	t.Helper()
	a, err := auth.New(cfg, true)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	if a == nil {
		t.Fatal("New: no Authenticator although a mode is set")
	}
	return a
}

func TestNewErrors(t *testing.T) {
	const (
		needsMode       = "websocket auth flags require `--ws-auth capability-token` or `--ws-auth signed-bearer-token`"
		needsListener   = "WebSocket auth requires a WebSocket listener, not stdio"
		needsToken      = "`--ws-token-file` or `--ws-token-sha256` is required when `--ws-auth capability-token` is set"
		exclusive       = "`--ws-token-file` and `--ws-token-sha256` are mutually exclusive"
		badDigest       = "--ws-token-sha256 must be a 64-character hex SHA-256 digest"
		needsSigned     = "`--ws-shared-secret-file`, `--ws-issuer`, `--ws-audience`, and `--ws-max-clock-skew-seconds` require `--ws-auth signed-bearer-token`"
		needsSecret     = "`--ws-shared-secret-file` is required when `--ws-auth signed-bearer-token` is set"
		needsCapability = "`--ws-token-file` and `--ws-token-sha256` require `--ws-auth capability-token`, not `signed-bearer-token`"
		badSkew         = "websocket auth clock skew must fit in a signed 64-bit integer"
	)
	const capability, signed = auth.ModeCapabilityToken, auth.ModeSignedBearerToken
	const unread = "/must/not/be/read"
	missing := filepath.Join(t.TempDir(), "missing")
	fifteen := writeFile(t, "  "+strings.Repeat("x", 15)+"\n")
	open := writeFile(t, capabilityToken)
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	token := writeFile(t, capabilityToken+"\n")
	secret := writeFile(t, sharedSecret)
	blank := writeFile(t, " \t\r\n\u00a0\n")
	short := writeFile(t, "\n"+sharedSecret[:31]+"\n\n")
	binary := writeFile(t, "a\xffb")
	long := writeFile(t, strings.Repeat("x", 1<<20+1))
	zero := new(uint64(0))
	tooMuch := new(uint64(math.MaxInt64 + 1))

	tests := []struct {
		name  string
		cfg   auth.Config
		stdio bool
		want  string
	}{
		{name: "token file without mode", cfg: auth.Config{TokenFile: unread}, want: needsMode},
		{name: "digest without mode", cfg: auth.Config{TokenSHA256: capabilityDigest}, want: needsMode},
		{name: "secret without mode", cfg: auth.Config{SharedSecretFile: unread}, want: needsMode},
		{name: "issuer without mode", cfg: auth.Config{Issuer: "i"}, want: needsMode},
		{name: "audience without mode", cfg: auth.Config{Audience: "a"}, want: needsMode},
		{name: "skew of zero without mode", cfg: auth.Config{MaxClockSkewSeconds: zero}, want: needsMode},
		{name: "query token without mode", cfg: auth.Config{AllowQueryToken: true}, want: needsMode},
		{name: "flags without mode, stdio", cfg: auth.Config{TokenFile: unread}, stdio: true, want: needsMode},

		{name: "unknown mode", cfg: auth.Config{Mode: "Capability-Token"}, want: "invalid value \"Capability-Token\" for `--ws-auth`; expected `capability-token` or `signed-bearer-token`"},

		{name: "capability, stdio", cfg: auth.Config{Mode: capability, TokenFile: unread}, stdio: true, want: needsListener},
		{name: "digest, stdio", cfg: auth.Config{Mode: capability, TokenSHA256: capabilityDigest}, stdio: true, want: needsListener},
		{name: "signed, stdio", cfg: auth.Config{Mode: signed, SharedSecretFile: unread, MaxClockSkewSeconds: tooMuch}, stdio: true, want: needsListener},
		{name: "incomplete capability, stdio", cfg: auth.Config{Mode: capability}, stdio: true, want: needsToken},
		{name: "bad digest, stdio", cfg: auth.Config{Mode: capability, TokenSHA256: "zz"}, stdio: true, want: badDigest},
		{name: "incomplete signed, stdio", cfg: auth.Config{Mode: signed}, stdio: true, want: needsSecret},

		{name: "capability without source", cfg: auth.Config{Mode: capability}, want: needsToken},
		{name: "both sources", cfg: auth.Config{Mode: capability, TokenFile: unread, TokenSHA256: "zz"}, want: exclusive},
		{name: "digest not hex", cfg: auth.Config{Mode: capability, TokenSHA256: strings.Repeat("z", 64)}, want: badDigest},
		{name: "digest too short", cfg: auth.Config{Mode: capability, TokenSHA256: capabilityDigest[2:]}, want: badDigest},
		{name: "digest odd", cfg: auth.Config{Mode: capability, TokenSHA256: capabilityDigest + "0"}, want: badDigest},
		{name: "digest too long", cfg: auth.Config{Mode: capability, TokenSHA256: capabilityDigest + "00"}, want: badDigest},
		{name: "secret with capability", cfg: auth.Config{Mode: capability, TokenFile: unread, SharedSecretFile: unread}, want: needsSigned},
		{name: "issuer with capability", cfg: auth.Config{Mode: capability, TokenFile: unread, TokenSHA256: "zz", Issuer: "i"}, want: needsSigned},
		{name: "audience with capability", cfg: auth.Config{Mode: capability, Audience: "a"}, want: needsSigned},
		{name: "skew with capability", cfg: auth.Config{Mode: capability, TokenFile: unread, MaxClockSkewSeconds: zero}, want: needsSigned},

		{name: "signed without secret", cfg: auth.Config{Mode: signed, Issuer: "i"}, want: needsSecret},
		{name: "token file with signed", cfg: auth.Config{Mode: signed, TokenFile: token}, want: needsCapability},
		{name: "digest with signed", cfg: auth.Config{Mode: signed, SharedSecretFile: secret, TokenSHA256: capabilityDigest}, want: needsCapability},

		{name: "unreadable token file", cfg: auth.Config{Mode: capability, TokenFile: missing}, want: "failed to read websocket auth secret " + missing + ": " + fsText(t, missing)},
		{name: "path is made absolute", cfg: auth.Config{Mode: capability, TokenFile: missing + "/../missing/"}, want: "failed to read websocket auth secret " + missing + ": " + fsText(t, missing)},
		{name: "binary token file", cfg: auth.Config{Mode: capability, TokenFile: binary}, want: "failed to read websocket auth secret " + binary + ": stream did not contain valid UTF-8"},
		{name: "endless token file", cfg: auth.Config{Mode: capability, TokenFile: long}, want: "failed to read websocket auth secret " + long + ": file is longer than 1048576 bytes"},
		{name: "empty token file", cfg: auth.Config{Mode: capability, TokenFile: blank}, want: "websocket auth secret " + blank + " must not be empty"},
		{name: "short token", cfg: auth.Config{Mode: capability, TokenFile: fifteen}, want: "websocket bearer token in " + fifteen + " has 15 bytes and must have at least 16; make one: (umask 077; head -c 32 /dev/urandom | base64 > " + fifteen + ")"},
		{name: "token file that others can read", cfg: auth.Config{Mode: capability, TokenFile: open}, want: "failed to read websocket auth secret " + open + ": its permissions are 0644, so that others can read or change it; run: chmod 600 " + open},
		{name: "secret file that others can read", cfg: auth.Config{Mode: signed, SharedSecretFile: open}, want: "failed to read websocket auth secret " + open + ": its permissions are 0644, so that others can read or change it; run: chmod 600 " + open},
		{name: "unreadable secret file", cfg: auth.Config{Mode: signed, SharedSecretFile: missing, MaxClockSkewSeconds: tooMuch}, want: "failed to read websocket auth secret " + missing + ": " + fsText(t, missing)},
		{name: "empty secret file", cfg: auth.Config{Mode: signed, SharedSecretFile: blank}, want: "websocket auth secret " + blank + " must not be empty"},
		{name: "short secret", cfg: auth.Config{Mode: signed, SharedSecretFile: short, MaxClockSkewSeconds: tooMuch}, want: "signed websocket bearer secret " + short + " must be at least 32 bytes"},
		{name: "skew too large", cfg: auth.Config{Mode: signed, SharedSecretFile: secret, MaxClockSkewSeconds: tooMuch}, want: badSkew},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, err := auth.New(tt.cfg, !tt.stdio)
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

// fsText is what the operating system says about a file that does not exist, as
// clients know it.
func fsText(t *testing.T, path string) string {
	t.Helper()
	_, err := os.Open(path)
	if err == nil {
		t.Fatalf("%s exists", path)
	}
	return errno.Text(err)
}

func TestNewWrapsFileError(t *testing.T) {
	_, err := auth.New(auth.Config{Mode: auth.ModeCapabilityToken, TokenFile: filepath.Join(t.TempDir(), "missing")}, true)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("New: %v does not wrap fs.ErrNotExist", err)
	}
}

func TestNewWithoutFlags(t *testing.T) {
	for _, webSocketListener := range []bool{true, false} {
		a, err := auth.New(auth.Config{}, webSocketListener)
		if a != nil || err != nil {
			t.Errorf("New(no flags, %t) = %v, %v, want nil, nil", webSocketListener, a, err)
		}
		if refusal := check(a, request("")); refusal != nil {
			t.Errorf("Check without authentication: %v", refusal)
		}
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
		{"absolute file", auth.Config{TokenFile: filepath.Join(home, "token")}},
		{"relative file", auth.Config{TokenFile: "token"}},
		{"file under home", auth.Config{TokenFile: "~/token"}},
		{"trailing newline", auth.Config{TokenFile: writeFile(t, capabilityToken+"\n")}},
		{"white space around", auth.Config{TokenFile: writeFile(t, "\t \u00a0"+capabilityToken+"\u2003\r\n\r\n")}},
		{"digest", auth.Config{TokenSHA256: capabilityDigest}},
		{"digest in upper case", auth.Config{TokenSHA256: strings.ToUpper(capabilityDigest)}},
		{"spaces around digest", auth.Config{TokenSHA256: " " + capabilityDigest + "\n"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.Mode = auth.ModeCapabilityToken
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
	a := newAuthenticator(t, auth.Config{Mode: auth.ModeCapabilityToken, TokenSHA256: digest})
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
		{Mode: auth.ModeCapabilityToken, TokenSHA256: marker},
		{Mode: auth.ModeCapabilityToken, TokenSHA256: marker, TokenFile: writeFile(t, marker)},
		{Mode: auth.ModeCapabilityToken, TokenSHA256: marker, SharedSecretFile: writeFile(t, marker)},
		{TokenSHA256: marker},
		{Mode: auth.ModeSignedBearerToken, TokenSHA256: marker},
		{Mode: auth.ModeSignedBearerToken, SharedSecretFile: writeFile(t, marker)},
		{Mode: auth.ModeSignedBearerToken, SharedSecretFile: writeFile(t, long), MaxClockSkewSeconds: new(uint64(math.MaxUint64))},
		{Mode: auth.ModeCapabilityToken, TokenFile: writeFile(t, marker+"\xff")},
		{Mode: auth.ModeCapabilityToken, TokenFile: writeFile(t, strings.Repeat(marker, 1<<18))},
	}
	for _, cfg := range configs {
		_, err := auth.New(cfg, true)
		if err == nil {
			t.Errorf("New(%+v): no error", cfg)
			continue
		}
		if strings.Contains(err.Error(), marker) {
			t.Errorf("the secret is in the error: %v", err)
		}
	}

	authenticators := []*auth.Authenticator{
		newAuthenticator(t, auth.Config{Mode: auth.ModeCapabilityToken, TokenFile: writeFile(t, long), AllowQueryToken: true}),
		newAuthenticator(t, auth.Config{Mode: auth.ModeSignedBearerToken, SharedSecretFile: writeFile(t, long), AllowQueryToken: true, Issuer: marker, Audience: marker}),
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
		return fmt.Sprintf("[[token]]\nname = \"a\"\njwks = %q\n", writeFile(t, `{"keys":[`+keys+`]}`))
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
		{"a certificate without TLS", "[[token]]\nname = \"a\"\ncertificate = \"a\"", "needs --tls-client-ca"},
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
		{"keys missing", "[[token]]\nname = \"a\"\njwks = \"missing\"", "No such file"},
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
			_, err := auth.New(auth.Config{TokensFile: writeFile(t, test.text)}, true)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\"hush\"") && !strings.Contains(test.want, "hush") {
				t.Errorf("got %v, want %q in it", err, test.want)
			}
		})
	}
}
