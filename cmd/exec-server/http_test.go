//go:build unix

package main

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// exchange is a request to a WebSocket listener and the answer that it must get. The
// released server gives the same answer, unless differs says why not.
type exchange struct {
	name    string
	request string // the request line and headers but Host, separated by |
	status  int
	body    string
	header  string // a header that the answer must have
	differs string
}

// upgrade is a valid request for a WebSocket, to which further headers may be added.
const upgrade = "GET / HTTP/1.1|Connection: Upgrade|Upgrade: websocket|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="

var endpoints = []exchange{
	{name: "ready", request: "GET /readyz HTTP/1.1", status: 200},
	{name: "ready, with a query", request: "GET /readyz?verbose HTTP/1.1", status: 200},
	{name: "ready, head", request: "HEAD /readyz HTTP/1.1", status: 200},
	{name: "ready, another method", request: "POST /readyz HTTP/1.1", status: 405, header: "Allow: GET,HEAD"},
	{name: "healthy", request: "GET /healthz HTTP/1.1", status: 200, differs: "it has no such path"},
	{name: "healthy, head", request: "HEAD /healthz HTTP/1.1", status: 200, differs: "it has no such path"},
	{name: "healthy, another method", request: "PUT /healthz HTTP/1.1", status: 405, header: "Allow: GET,HEAD", differs: "it has no such path"},
	{name: "an origin", request: upgrade + "|Origin: http://127.0.0.1", status: 403},
	{name: "an empty origin", request: upgrade + "|Origin: ", status: 403},
	{name: "an origin that asks whether the server is ready", request: "GET /readyz HTTP/1.1|Origin: null", status: 403},
	{name: "an origin on a path that does not exist", request: "GET /nothing HTTP/1.1|Origin: null", status: 403},
	{name: "another path", request: "GET /nothing HTTP/1.1", status: 404},
	{name: "another path, ready with a slash", request: "GET /readyz/ HTTP/1.1", status: 404},
	{name: "another path, upgrade", request: strings.Replace(upgrade, "/", "/v1", 1), status: 404},
	{name: "another method", request: "POST / HTTP/1.1", status: 405, body: "Request method must be `GET`"},
	{name: "another method, upgrade", request: strings.Replace(upgrade, "GET", "PUT", 1), status: 405, body: "Request method must be `GET`"},
	{name: "another method, head", request: "HEAD / HTTP/1.1", status: 405},
	{name: "plain", request: "GET / HTTP/1.1", status: 400, body: "Connection header did not include 'upgrade'"},
	{name: "upgrade to something else", request: strings.Replace(upgrade, "websocket", "h2c", 1), status: 400, body: "`Upgrade` header did not include 'websocket'"},
	{name: "another version", request: strings.Replace(upgrade, "13", "8", 1), status: 400, body: "`Sec-WebSocket-Version` header did not include '13'"},
	{name: "no key", request: strings.Split(upgrade, "|Sec-WebSocket-Key")[0], status: 400, body: "`Sec-WebSocket-Key` header missing"},
	{name: "several versions", request: strings.Replace(upgrade, "13", "8, 13", 1), status: 400, body: "`Sec-WebSocket-Version` header did not include '13'"},
	{name: "a key of another size", request: strings.Replace(upgrade, "AAAAAAAAAAAAAAAAAAAAAA==", "AAAA", 1), status: 101},
	{name: "an absolute URL", request: strings.Replace(upgrade, "GET /", "GET http://localhost/", 1), status: 101},
	{name: "a doubled slash", request: strings.Replace(upgrade, "/", "//", 1), status: 404},
	{name: "upgrade", request: upgrade, status: 101, header: "Sec-Websocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI="},
	{name: "upgrade, with a query", request: strings.Replace(upgrade, "/", "/?a=b", 1), status: 101},
	{name: "upgrade, in other letters", request: strings.Replace(strings.Replace(upgrade, "Upgrade: websocket", "upgrade: WebSocket", 1), "Connection: Upgrade", "connection: keep-alive, upgrade", 1), status: 101},
	{name: "upgrade, with protocols and extensions", request: upgrade + "|Sec-WebSocket-Protocol: mqtt|Sec-WebSocket-Extensions: permessage-deflate", status: 101},
}

func TestEndpoints(t *testing.T) {
	p := newListener(t)
	for _, e := range endpoints {
		t.Run(e.name, func(t *testing.T) { e.check(t, p) })
	}
}

// TestUpgradeChoosesNothing checks that the server agrees to no subprotocol and no
// extension, whatever the client offers.
func TestUpgradeChoosesNothing(t *testing.T) {
	p := newListener(t)
	r, _ := ask(t, p, upgrade+"|Sec-WebSocket-Protocol: mqtt|Sec-WebSocket-Extensions: permessage-deflate")
	for _, name := range []string{"Sec-Websocket-Protocol", "Sec-Websocket-Extensions"} {
		if v, ok := r.Header[name]; ok {
			t.Errorf("%s: %s", name, v)
		}
	}
}

// newListener starts exec-server, or the command that it is compared with, on a
// WebSocket.
func newListener(t *testing.T, args ...string) *program {
	t.Helper()
	released := strings.Fields(os.Getenv("EXEC_SERVER_COMMAND"))
	if len(released) == 0 {
		return newServer(t, args...)
	}
	p, err := launch(exec.Command(released[0], append(released[1:], args...)...), true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return p
}

func (e exchange) check(t *testing.T, p *program) {
	t.Helper()
	err := e.ask(t, p)
	switch released := os.Getenv("EXEC_SERVER_COMMAND") != ""; {
	case released && e.differs != "" && err == nil:
		t.Errorf("the released server agrees, although it should differ: %s", e.differs)
	case err != nil && (!released || e.differs == ""):
		t.Error(err)
	}
}

func (e exchange) ask(t *testing.T, p *program) error {
	t.Helper()
	r, body := ask(t, p, e.request)
	if r.StatusCode != e.status || body != e.body {
		return fmt.Errorf("got %d %q, want %d %q", r.StatusCode, body, e.status, e.body)
	}
	if name, want, ok := strings.Cut(e.header, ": "); ok && r.Header.Get(name) != want {
		return fmt.Errorf("%s is %q, want %q", name, r.Header.Get(name), want)
	}
	return nil
}

// ask sends a request byte by byte as written, except for the line ends.
func ask(t *testing.T, p *program, request string) (*http.Response, string) {
	t.Helper()
	conn, err := p.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	lines := strings.Split(request, "|")
	lines = append(lines, "Host: "+p.address(), "Content-Length: 0", "", "")
	// The server may refuse a large request, and be gone, before all of it is written.
	_, wrote := io.WriteString(conn, strings.Join(lines, "\r\n"))
	method, _, _ := strings.Cut(request, " ")
	r, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatal(errors.Join(wrote, err))
	}
	if r.StatusCode == http.StatusSwitchingProtocols {
		return r, ""
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r, string(body)
}

// The credentials of the tests.
const (
	token  = "open sesame now please"
	secret = "0123456789abcdef0123456789abcdef"
)

func bearer(token string) string { return upgrade + "|Authorization: Bearer " + token }

func TestCapabilityToken(t *testing.T) {
	t.Parallel()
	cases := []exchange{
		{name: "right", request: bearer(token), status: 101},
		{name: "right, scheme in other letters", request: upgrade + "|Authorization: bEARER " + token, status: 101},
		{name: "right, with spaces around", request: upgrade + "|Authorization:   Bearer   " + token + "  ", status: 101},
		{name: "wrong", request: bearer("open"), status: 401, body: "invalid websocket bearer token"},
		{name: "longer", request: bearer(token + "!"), status: 401, body: "invalid websocket bearer token"},
		{name: "in other letters", request: bearer("Open Sesame Now Please"), status: 401, body: "invalid websocket bearer token"},
		{name: "none", request: upgrade, status: 401, body: "missing websocket bearer token"},
		{name: "in the query", request: strings.Replace(upgrade, "/", "/?token=open%20sesame%20now%20please", 1), status: 401, body: "missing websocket bearer token"},
		{name: "another scheme", request: upgrade + "|Authorization: Basic " + token, status: 401, body: "invalid authorization header"},
		{name: "no scheme", request: upgrade + "|Authorization: sesame", status: 401, body: "invalid authorization header"},
		{name: "empty", request: upgrade + "|Authorization: Bearer ", status: 401, body: "invalid authorization header"},
		{name: "two", request: bearer(token) + "|Authorization: Bearer wrong", status: 401, body: "invalid authorization header", differs: "it takes the first"},
		{name: "the probes need none", request: "GET /readyz HTTP/1.1", status: 200},
		{name: "an origin comes first", request: bearer(token) + "|Origin: null", status: 403},
		{name: "the route comes before", request: "GET /nothing HTTP/1.1", status: 404},
		{name: "the upgrade comes before", request: "GET / HTTP/1.1", status: 400, body: "Connection header did not include 'upgrade'"},
	}
	digest := fmt.Sprintf("%X", sha256.Sum256([]byte(token)))
	for name, source := range map[string][]string{
		"file":   {"--ws-token-file", writeFile(t, " "+token+"\r\n")},
		"digest": {"--ws-token-sha256", digest},
	} {
		p := newListener(t, append(source, "--ws-auth", "capability-token")...)
		for _, e := range cases {
			t.Run(name+"/"+e.name, func(t *testing.T) { e.check(t, p) })
		}
		keepsSecret(t, p)
	}
}

// keepsSecret fails the test if the log contains a part of the credentials.
func keepsSecret(t *testing.T, p *program) {
	t.Helper()
	if text := p.stderr.text(); strings.Contains(strings.ToLower(text), "sesame") {
		t.Errorf("a token is logged: %s", text)
	}
}

// TestQueryToken checks tokens that may come in the query, for clients that cannot send a
// header.
func TestQueryToken(t *testing.T) {
	t.Parallel()
	query := func(query string) string { return strings.Replace(upgrade, "/", "/?"+query, 1) }
	p := newServer(t, "--tokens", writeFile(t, fmt.Sprintf(`
[[token]]
name = "old-codex"
sha256 = "%x"
scope = ["full"]
query = true
[[token]]
name = "other"
sha256 = "%x"
scope = ["full"]
`, sha256.Sum256([]byte(token)), sha256.Sum256([]byte(token+"2")))))
	for _, e := range []exchange{
		{name: "right", request: query("token=open%20sesame%20now%20please"), status: 101},
		{name: "right, among others", request: query("a=b&token=open+sesame+now+please"), status: 101},
		{name: "one that may not", request: query("token=open+sesame+now+please2"), status: 401, body: "invalid websocket bearer token"},
		{name: "that one in a header", request: bearer(token + "2"), status: 101},
		{name: "wrong", request: query("token=sesame"), status: 401, body: "invalid websocket bearer token"},
		{name: "empty", request: query("token="), status: 401, body: "invalid token query parameter"},
		{name: "two", request: query("token=open+sesame+now+please&token=open+sesame+now+please"), status: 401, body: "invalid token query parameter"},
		{name: "none", request: query("a=b"), status: 401, body: "missing websocket bearer token"},
		{name: "a header goes before it", request: query("token=open+sesame+now+please") + "|Authorization: Bearer wrong", status: 401, body: "invalid websocket bearer token"},
		{name: "header", request: bearer(token), status: 101},
	} {
		t.Run(e.name, func(t *testing.T) { e.check(t, p) })
	}
	keepsSecret(t, p)
}

func TestSignedBearerToken(t *testing.T) {
	t.Parallel()
	now := time.Now().Unix()
	claims := func(format string, args ...any) string { return sign("HS256", fmt.Sprintf(format, args...)) }
	p := newListener(t, "--tokens", signedEntries(t, "secret", secret+"\n"))
	good := claims(`{"exp":%d,"iss":"me","aud":"you"}`, now+600)
	const invalid = "invalid websocket jwt"
	for _, e := range []exchange{
		{name: "right", request: bearer(good), status: 101},
		{name: "one of several audiences", request: bearer(claims(`{"exp":%d,"iss":"me","aud":["them","you"]}`, now+600)), status: 101},
		{name: "from now on", request: bearer(claims(`{"exp":%d,"nbf":%d,"iss":"me","aud":"you","iat":"?"}`, now+600, now)), status: 101},
		{name: "expired within the skew", request: bearer(claims(`{"exp":%d,"iss":"me","aud":"you"}`, now-5)), status: 101},
		{name: "early within the skew", request: bearer(claims(`{"exp":%d,"nbf":%d,"iss":"me","aud":"you"}`, now+600, now+20)), status: 101},
		{name: "expired", request: bearer(claims(`{"exp":%d,"iss":"me","aud":"you"}`, now-60)), status: 401, body: "expired websocket jwt"},
		{name: "early", request: bearer(claims(`{"exp":%d,"nbf":%d,"iss":"me","aud":"you"}`, now+600, now+120)), status: 401, body: "websocket jwt is not valid yet"},
		{name: "another issuer", request: bearer(claims(`{"exp":%d,"iss":"them","aud":"you"}`, now+600)), status: 401, body: "websocket jwt issuer mismatch"},
		{name: "no issuer", request: bearer(claims(`{"exp":%d,"aud":"you"}`, now+600)), status: 401, body: "websocket jwt issuer mismatch"},
		{name: "another audience", request: bearer(claims(`{"exp":%d,"iss":"me","aud":"them"}`, now+600)), status: 401, body: "websocket jwt audience mismatch"},
		{name: "no audience", request: bearer(claims(`{"exp":%d,"iss":"me"}`, now+600)), status: 401, body: "websocket jwt audience mismatch"},
		{name: "no expiry", request: bearer(claims(`{"iss":"me","aud":"you"}`)), status: 401, body: invalid},
		{name: "expiry as a string", request: bearer(claims(`{"exp":"%d","iss":"me","aud":"you"}`, now+600)), status: 401, body: invalid},
		{name: "expiry with a fraction", request: bearer(claims(`{"exp":%d.5,"iss":"me","aud":"you"}`, now+600)), status: 401, body: invalid},
		{name: "issuer as a number", request: bearer(claims(`{"exp":%d,"iss":1,"aud":"you"}`, now+600)), status: 401, body: invalid},
		{name: "another algorithm", request: bearer(sign("HS512", fmt.Sprintf(`{"exp":%d,"iss":"me","aud":"you"}`, now+600))), status: 401, body: invalid},
		{name: "no algorithm", request: bearer(sign("none", fmt.Sprintf(`{"exp":%d,"iss":"me","aud":"you"}`, now+600))), status: 401, body: invalid},
		{name: "no signature", request: bearer(good[:strings.LastIndex(good, ".")+1]), status: 401, body: invalid},
		{name: "another signature", request: bearer(good[:len(good)-8] + "AAAAAAAA"), status: 401, body: invalid},
		{name: "padding", request: bearer(good + "="), status: 401, body: invalid},
		{name: "not a token", request: bearer("open sesame now please"), status: 401, body: invalid},
		{name: "none", request: upgrade, status: 401, body: "missing websocket bearer token"},
		{name: "another scheme", request: upgrade + "|Authorization: Token " + good, status: 401, body: "invalid authorization header"},
	} {
		t.Run(e.name, func(t *testing.T) { e.check(t, p) })
	}
}

// signedEntries returns a tokens file that has an entry for signed tokens of "me" for "you", for
// each pair of a kind of key and the content of its file.
func signedEntries(t *testing.T, keys ...string) string {
	t.Helper()
	var entries strings.Builder
	for i := 0; i < len(keys); i += 2 {
		fmt.Fprintf(&entries, "[[token]]\nname = \"key-%d\"\n%s = %q\nissuer = \"me\"\naudience = \"you\"\nscope = [\"full\"]\n", i, keys[i], writeFile(t, keys[i+1]))
	}
	return writeFile(t, entries.String())
}

// sign builds a JWT by hand.
func sign(algorithm, claims string) string {
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(`{"alg":"`+algorithm+`","typ":"JWT"}`)) + "." + encode([]byte(claims))
	hashes := map[string]func() hash.Hash{"HS256": sha256.New, "HS512": sha512.New}
	if hashes[algorithm] == nil {
		return text + "."
	}
	mac := hmac.New(hashes[algorithm], []byte(secret))
	mac.Write([]byte(text))
	return text + "." + encode(mac.Sum(nil))
}

func writeFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestProxy checks that a client reaches a plain WebSocket through the HTTP proxy of its
// environment as through any other: with CONNECT.
func TestProxy(t *testing.T) {
	p := newServer(t, "--allow-host", "box.invalid")
	var authorization, asked string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		authorization = r.Header.Get("Proxy-Authorization")
		asked = r.Method + " " + r.Host
		if r.Method != http.MethodConnect {
			http.Error(w, "this proxy passes no upgrades on", http.StatusBadRequest)
			return
		}
		if authorization == "" {
			http.Error(w, "who are you?", http.StatusProxyAuthRequired)
			return
		}
		server, err := p.dial()
		if err != nil {
			t.Error(err)
			return
		}
		defer server.Close()
		w.WriteHeader(http.StatusOK)
		client, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer client.Close()
		go func() { // ends with server
			// The client may have sent its request before the connection was taken over.
			_, _ = io.Copy(server, buffered)
			_ = server.Close()
		}()
		_, _ = io.Copy(client, server)
	}))
	t.Cleanup(proxy.Close)
	run := func(url string) (string, error) {
		command := exec.Command("exec-server", "run", "--url", "ws://box.invalid:8765", "--", "echo", "hi")
		command.Env = append(os.Environ(), "HTTP_PROXY="+url, "NO_PROXY=")
		out, err := command.CombinedOutput()
		return string(out), err
	}
	if out, err := run(strings.Replace(proxy.URL, "://", "://me:secret@", 1)); err != nil || out != "hi\n" {
		t.Errorf("run: %q, %v", out, err)
	}
	if asked != "CONNECT box.invalid:8765" || authorization != "Basic bWU6c2VjcmV0" {
		t.Errorf("the proxy was asked %q with %q", asked, authorization)
	}
	if out, err := run(proxy.URL); err == nil || !strings.Contains(out, "refused to connect to the server with status 407 Proxy Authentication Required: who are you?") {
		t.Errorf("run without a password: %q, %v", out, err)
	}
}
