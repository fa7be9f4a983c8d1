package server_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"execserver/client"
	"execserver/internal/extension"
	"execserver/internal/testkit"
	"execserver/internal/web"
	"execserver/server"
	"execserver/transport"
)

// pageOf returns options of a server with a page.
func pageOf() server.Options { return server.Options{Extensions: &extension.Options{Page: web.New()}} }

// browser sends requests as a page of the server at a ws:// URL does.
type browser struct {
	t      *testing.T
	base   string // http://
	origin string // "" sends none
	plain  bool   // requests for a socket are no upgrades
	fetch  map[string]string
	client *http.Client
}

func newBrowser(t *testing.T, url string) *browser {
	base := strings.Replace(url, "ws://", "http://", 1)
	return &browser{t: t, base: base, origin: base, client: http.DefaultClient}
}

// do sends a request, and returns the status and the body of the answer.
func (b *browser) do(method, path, bearer, body string) (status int, text string, header http.Header) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(testContext(b.t), method, b.base+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	if b.origin != "" {
		r.Header.Set("Origin", b.origin)
	}
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	if strings.HasPrefix(path, "/web/socket") && !b.plain {
		for name, value := range map[string]string{
			"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
		} {
			r.Header.Set(name, value)
		}
	}
	for name, value := range b.fetch {
		r.Header.Set(name, value)
	}
	answer, err := b.client.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer.StatusCode, string(content), answer.Header
}

// secret does a request that must succeed, and returns a member of the answer.
func (b *browser) secret(path, bearer, body, member string) string {
	b.t.Helper()
	status, text, _ := b.do(http.MethodPost, path, bearer, body)
	var members map[string]any
	if err := json.Unmarshal([]byte(text), &members); err != nil || status != http.StatusOK {
		b.t.Fatalf("%s: %d %s", path, status, text)
	}
	secret, _ := members[member].(string)
	if len(secret) != 43 {
		b.t.Fatalf("%s: %s is %q", path, member, secret)
	}
	return secret
}

// link returns the code of a new link.
func link(t *testing.T, env *client.Environment) string {
	t.Helper()
	path, life, err := env.WebLink(testContext(t))
	code, isPage := strings.CutPrefix(path, "/web/#")
	if err != nil || !isPage || life.Minutes() != 1 {
		t.Fatalf("the link is %q for %s, %v", path, life, err)
	}
	return code
}

// connect opens the WebSocket of the page with a ticket.
func (b *browser) connect(ticket string) (transport.Conn, error) {
	return transport.Dial(testContext(b.t), strings.Replace(b.base, "http", "ws", 1)+"/web/socket?ticket="+ticket, nil)
}

// A browser that opens a link may do what its maker may do, and no more: its connection
// has the principal's name and scopes.
func TestSignInByLink(t *testing.T) {
	as := serveTokens(t, pageOf(), map[string]string{"eve": `scope = ["observe"]`, "ann": `scope = ["exec"]`})
	ann := as("ann")
	owner, err := client.Dial(testContext(t), ann.url, &client.Options{Token: ann.token})
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	b := newBrowser(t, ann.url)
	key := b.secret("/web/sign-in", "", `{"code":"`+link(t, dialAs(t, as("eve")))+`"}`, "key")
	conn, err := b.connect(b.secret("/web/ticket", key, "", "ticket"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(transport.Reason{})
	eve, err := client.New(testContext(t), conn, &client.Options{NoSession: true})
	if err != nil {
		t.Fatal(err)
	}
	defer eve.Close()
	sessions, err := eve.Sessions(testContext(t))
	if err != nil || len(sessions) != 1 || sessions[0].Own || sessions[0].Principal != "ann" {
		t.Errorf("the page lists %+v, %v", sessions, err)
	}
	if err := eve.EndSession(testContext(t), owner.Session()); err == nil {
		t.Error("the page may do more than its principal")
	}
	token := b.secret("/web/sign-in", as("ann").token, "", "key")
	if token == key {
		t.Error("two keys are the same")
	}
}

// A browser makes no links: one that was signed out, or had somebody else's link, could stay by
// another key.
func TestLinksAreNotForBrowsers(t *testing.T) {
	o := pageOf()
	o.Auth = server.Unauthenticated
	url := serveWebSocket(t, &o).(webSocketServer).url
	env, err := client.Dial(testContext(t), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer env.Close()
	b := newBrowser(t, url)
	key := b.secret("/web/sign-in", "", `{"code":"`+link(t, env)+`"}`, "key")
	conn, err := b.connect(b.secret("/web/ticket", key, "", "ticket"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := client.New(testContext(t), conn, &client.Options{NoSession: true})
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	if path, _, err := page.WebLink(testContext(t)); err == nil || !strings.Contains(err.Error(), "a browser") {
		t.Errorf("a browser gets the link %q, %v", path, err)
	}
}

// TestPageDoors lists what signs nobody in.
func TestPageDoors(t *testing.T) {
	t.Parallel() // the server takes its time to refuse
	as := serveTokens(t, pageOf(), map[string]string{"ann": `scope = ["exec"]`})
	env := dialAs(t, as("ann"))
	b := newBrowser(t, as("ann").url)
	code := link(t, env)
	key := b.secret("/web/sign-in", "", `{"code":"`+code+`"}`, "key")
	ticket := b.secret("/web/ticket", key, "", "ticket")
	conn, err := b.connect(ticket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(transport.Reason{})
	gone := b.secret("/web/sign-in", "", `{"code":"`+link(t, env)+`"}`, "key")
	leaving, err := b.connect(b.secret("/web/ticket", gone, "", "ticket"))
	if err != nil {
		t.Fatal(err)
	}
	unusedTicket := b.secret("/web/ticket", gone, "", "ticket")
	if status, text, _ := b.do("POST", "/web/sign-out", gone, ""); status != 200 {
		t.Errorf("sign out: %d %s", status, text)
	}
	if text, err := leaving.Read(nil); err == nil {
		t.Errorf("a connection of a key that has signed out stays, and says %s", text)
	}
	if _, err := b.connect(unusedTicket); err == nil {
		t.Error("a ticket of a key that has signed out is good")
	}
	unused := link(t, env)
	for _, attempt := range []struct {
		what, method, path, bearer, body string
		origin                           string
		status                           int
	}{
		{"a used link", "POST", "/web/sign-in", "", `{"code":"` + code + `"}`, b.base, 401},
		{"a wrong code", "POST", "/web/sign-in", "", `{"code":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}`, b.base, 401},
		{"no code", "POST", "/web/sign-in", "", `{}`, b.base, 401},
		{"no JSON", "POST", "/web/sign-in", "", `code=x`, b.base, 401},
		{"much JSON", "POST", "/web/sign-in", "", `{"code":"` + strings.Repeat("x", 1<<20) + `"}`, b.base, 401},
		{"a key as a code", "POST", "/web/sign-in", "", `{"code":"` + key + `"}`, b.base, 401},
		{"a key as a token", "POST", "/web/sign-in", key, "", b.base, 401},
		{"a wrong token", "POST", "/web/sign-in", "the token of bob", "", b.base, 401},
		{"a code as a key", "POST", "/web/ticket", unused, "", b.base, 401},
		{"a key that has signed out", "POST", "/web/ticket", gone, "", b.base, 401},
		{"no key", "POST", "/web/ticket", "", "", b.base, 401},
		{"a used ticket", "GET", "/web/socket?ticket=" + ticket, "", "", b.base, 401},
		{"a key as a ticket", "GET", "/web/socket?ticket=" + key, "", "", b.base, 401},
		{"no ticket", "GET", "/web/socket", key, "", b.base, 401},
		{"a foreign page", "POST", "/web/sign-in", "", `{"code":"` + unused + `"}`, "http://evil.example", 403},
		{"a page of another port", "POST", "/web/sign-in", "", `{"code":"` + unused + `"}`, "http://127.0.0.1:1", 403},
		{"a page of another scheme", "POST", "/web/ticket", key, "", strings.Replace(b.base, "http", "https", 1), 403},
		{"a page without an origin", "POST", "/web/ticket", key, "", "null", 403},
		{"a foreign page with a ticket", "GET", "/web/socket?ticket=" + b.secret("/web/ticket", key, "", "ticket"), "", "", "http://evil.example", 403},
		{"its own page, but not the page's path", "GET", "/", "", "", b.base, 403},
		{"its own page, but not there", "GET", "/web/nothing", "", "", b.base, 403},
		{"another method", "GET", "/web/sign-in", "", "", b.base, 405},
		{"another method for the document", "POST", "/web/", "", "", b.base, 405},
		{"no such file", "GET", "/web/../web.go", "", "", "", 404},
		{"the directory", "GET", "/web/vendor/", "", "", "", 404},
	} {
		other := *b
		other.origin = attempt.origin
		status, text, _ := other.do(attempt.method, attempt.path, attempt.bearer, attempt.body)
		if status != attempt.status {
			t.Errorf("%s: %d %s, want %d", attempt.what, status, text, attempt.status)
		}
		if strings.Contains(text, `"key"`) || strings.Contains(text, `"ticket"`) {
			t.Errorf("%s gets a secret", attempt.what)
		}
	}
	// A request that is no upgrade uses up no ticket.
	kept := b.secret("/web/ticket", key, "", "ticket")
	plain := *b
	plain.plain = true
	if status, text, _ := plain.do("GET", "/web/socket?ticket="+kept, "", ""); status != 400 {
		t.Errorf("no upgrade: %d %s", status, text)
	}
	second, err := b.connect(kept)
	if err != nil {
		t.Fatalf("a ticket that a plain request has named: %v", err)
	}
	_ = second.Close(transport.Reason{})
	if b.secret("/web/sign-in", "", `{"code":"`+unused+`"}`, "key") == "" {
		t.Error("a link that was presented at a wrong place is used")
	}
}

// TestFetchMetadata sends what browsers send without an Origin for a page of another origin:
// images, frames, and links that a person follows. None of it counts as a failed
// authentication.
func TestFetchMetadata(t *testing.T) {
	as := serveTokens(t, pageOf(), map[string]string{"ann": `scope = ["exec"]`})
	for _, request := range []struct {
		path, site, mode, dest string
		status                 int
	}{
		{"/web/", "none", "navigate", "document", 200},
		{"/web/", "cross-site", "navigate", "document", 200}, // a link in a chat
		{"/web/", "cross-site", "navigate", "iframe", 403},
		{"/web/main.js", "same-origin", "cors", "script", 200},
		{"/web/main.js", "same-site", "no-cors", "script", 403}, // of another port
		{"/web/icon.svg", "cross-site", "no-cors", "image", 403},
		{"/web/socket?ticket=x", "cross-site", "no-cors", "image", 403},
		{"/web/socket?ticket=x", "cross-site", "navigate", "document", 400},
		{"/", "cross-site", "no-cors", "image", 403},
		{"/metrics", "cross-site", "navigate", "document", 403},
		{"/healthz", "cross-site", "no-cors", "image", 403},
	} {
		b := newBrowser(t, as("ann").url)
		b.origin, b.plain = "", true
		b.fetch = map[string]string{"Sec-Fetch-Site": request.site, "Sec-Fetch-Mode": request.mode, "Sec-Fetch-Dest": request.dest}
		if status, text, _ := b.do("GET", request.path, "", ""); status != request.status {
			t.Errorf("%+v: %d %s", request, status, text)
		}
	}
}

// TestPageWithoutTokens has a server without authentication: only a link signs in.
func TestPageWithoutTokens(t *testing.T) {
	o := pageOf()
	o.Auth = server.Unauthenticated
	url := serveWebSocket(t, &o).(webSocketServer).url
	b := newBrowser(t, url)
	if status, text, _ := b.do("POST", "/web/sign-in", "a token of at least 16 bytes", ""); status != 401 {
		t.Errorf("a token: %d %s", status, text)
	}
	env, err := client.Dial(testContext(t), url, &client.Options{NoSession: true})
	if err != nil {
		t.Fatal(err)
	}
	defer env.Close()
	b.secret("/web/sign-in", "", `{"code":"`+link(t, env)+`"}`, "key")
}

// Credentials that are revoked end what a link has given.
func TestPageOfRevokedCredentials(t *testing.T) {
	entry := func(name string) string {
		return fmt.Sprintf("[[token]]\nname = %q\nsha256 = \"%x\"\nscope = [\"exec\"]\n", name, sha256.Sum256([]byte("the token of "+name)))
	}
	file := testkit.Secret(t, entry("ann"))
	authenticator, err := server.NewAuthenticator(server.AuthConfig{TokensFile: file})
	if err != nil {
		t.Fatal(err)
	}
	o := pageOf()
	o.Auth = authenticator
	srv := server.New(&o)
	t.Cleanup(func() { testkit.Shutdown(t, srv) })
	as := bearer{listenWebSocket(t, srv).(webSocketServer).url, "the token of ann"}
	b := newBrowser(t, as.url)
	env := dialAs(t, as)
	unused := link(t, env)
	key := b.secret("/web/sign-in", "", `{"code":"`+link(t, env)+`"}`, "key")
	ticket := b.secret("/web/ticket", key, "", "ticket")
	conn, err := b.connect(b.secret("/web/ticket", key, "", "ticket"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(transport.Reason{})
	if err := os.WriteFile(file, []byte(entry("bob")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := authenticator.Refresh(); err != nil {
		t.Fatal(err)
	}
	srv.Recheck()
	for path, body := range map[string]string{"/web/sign-in": `{"code":"` + unused + `"}`, "/web/ticket": ""} {
		bearer := key
		if body != "" {
			bearer = ""
		}
		if status, text, _ := b.do("POST", path, bearer, body); status != 401 {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	if status, text, _ := b.do("GET", "/web/socket?ticket="+ticket, "", ""); status != 401 {
		t.Errorf("a ticket: %d %s", status, text)
	}
	if _, err := conn.Read(nil); err == nil {
		t.Error("the connection of the page stays")
	}
}

// TestPageHeaders checks what keeps the text of programs from doing anything in the page.
func TestPageHeaders(t *testing.T) {
	o := pageOf()
	o.Auth = server.Unauthenticated
	b := newBrowser(t, serveWebSocket(t, &o).(webSocketServer).url)
	b.origin = ""
	status, text, header := b.do("GET", "/web/", "", "")
	policy := header.Get("Content-Security-Policy")
	nonce, _, _ := strings.Cut(strings.SplitN(policy, "nonce-", 2)[1], "'")
	if status != 200 || len(nonce) < 26 || !strings.Contains(text, `content="`+nonce+`"`) {
		t.Errorf("%d, %s, %s", status, policy, text)
	}
	for _, directive := range []string{"default-src 'none'", "script-src 'self';", "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'; trusted-types 'none'"} {
		if !strings.Contains(policy, directive) {
			t.Errorf("the policy lacks %s: %s", directive, policy)
		}
	}
	_, again, _ := b.do("GET", "/web/", "", "")
	if again == text {
		t.Error("two documents have the same nonce")
	}
	if strings.Contains(text, "<script>") || strings.Contains(text, " on") && strings.Contains(text, "onclick") {
		t.Error("the document has a script")
	}
	for _, name := range []string{"main.js", "style.css", "vendor/xterm.mjs", "icon.svg"} {
		status, text, header := b.do("GET", "/web/"+name, "", "")
		if status != 200 || text == "" || header.Get("X-Content-Type-Options") != "nosniff" || header.Get("ETag") == "" {
			t.Errorf("%s: %d, %v", name, status, header)
		}
		if bytes.Contains([]byte(text), []byte("https://cdn")) {
			t.Errorf("%s loads something from elsewhere", name)
		}
	}
	for _, path := range []string{"/web", "/"} {
		typed := newBrowser(t, b.base)
		typed.origin, typed.fetch = "", map[string]string{"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
		if status, text, _ := typed.do("GET", path, "", ""); status != 200 || !strings.Contains(text, `content="`) {
			t.Errorf("%s: %d, %q", path, status, text)
		}
		followed := newBrowser(t, b.base)
		followed.origin, followed.fetch = "", map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
		if status, text, _ := followed.do("GET", path, "", ""); status != 200 || !strings.Contains(text, `content="`) {
			t.Errorf("%s by a link: %d, %q", path, status, text)
		}
		embedded := newBrowser(t, b.base)
		embedded.origin, embedded.fetch = "", map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
		if status, _, _ := embedded.do("GET", path, "", ""); status != 403 {
			t.Errorf("%s as an image: %d", path, status)
		}
	}
}
