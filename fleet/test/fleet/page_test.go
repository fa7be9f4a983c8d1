//go:build linux

package fleet

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"execserver/client"
	"execserver/fleet/internal/fleet"
	"execserver/internal/testkit"
	"execserver/transport"
)

// browser is a browser at the page of a gateway.
type browser struct {
	t      *testing.T
	base   string // http://HOST:PORT
	origin string // of the page that sends requests; "" sends none
}

// do sends a request with a bearer token or a key.
func (b browser) do(method, path, bearer, body string) (status int, text string) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.base+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	if b.origin != "" {
		r.Header.Set("Origin", b.origin)
	}
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer.StatusCode, string(content)
}

// get sends a request that must succeed, and returns a member of the answer.
func (b browser) get(path, bearer, body, member string) string {
	b.t.Helper()
	status, text := b.do(http.MethodPost, path, bearer, body)
	var members map[string]any
	if err := json.Unmarshal([]byte(text), &members); err != nil || status != http.StatusOK {
		b.t.Fatalf("%s: %d %s", path, status, text)
	}
	value, _ := members[member].(string)
	return value
}

// signIn returns the key for a link that the command prints to the holder of a token, or of
// none.
func (b browser) signIn(n *node, token string) (key string) {
	b.t.Helper()
	args := []string{"web"}
	if token != "" {
		args = append(args, "--token-file", testkit.Secret(b.t, token))
	}
	out, errOut, code := fleetCommand(b.t, n, args...)
	link, fragment, ok := strings.Cut(strings.TrimSpace(out), "#")
	if code != 0 || !ok || link != b.base+"/web/" {
		b.t.Fatalf("the link is %q, %q", out, errOut)
	}
	return b.get("/web/sign-in", "", `{"code":"`+fragment+`"}`, "key")
}

// connect opens the WebSocket to a machine with a ticket.
func (b browser) connect(machine, ticket string) (transport.Conn, error) {
	query := url.Values{"machine": {machine}, "ticket": {ticket}}
	return transport.Dial(b.t.Context(), strings.Replace(b.base, "http", "ws", 1)+"/web/socket?"+query.Encode(), nil)
}

// machines returns the names of the machines that the page lists.
func (b browser) machines(key string) (names []string) {
	b.t.Helper()
	status, text := b.do(http.MethodGet, "/web/fleet", key, "")
	var list []fleet.Member
	if err := json.Unmarshal([]byte(text), &list); err != nil || status != http.StatusOK {
		b.t.Fatalf("the list of the page: %d %s", status, text)
	}
	for _, m := range list {
		names = append(names, m.Name)
	}
	return names
}

// pageGateway is a gateway with a page and two machines. ann may use both, and bob box-2.
func pageGateway(t *testing.T) (n *node, b browser, clients string) {
	t.Helper()
	entry := func(name, rest string) string {
		return fmt.Sprintf("[[token]]\nname = %q\nsha256 = \"%x\"\nscope = [\"full\"]\n%s", name, sha256.Sum256([]byte(clientToken(name))), rest)
	}
	clients = testkit.Secret(t, entry("ann", "")+entry("bob", "machines = [\"box-2\"]\n"))
	n = gateway(t, "--tokens", clients, "--web")
	n.tokenFile = testkit.Secret(t, clientToken("ann"))
	join(t, []*node{n}, "box-1")
	join(t, []*node{n}, "box-2")
	b = browser{t, "http://" + n.client, "http://" + n.client}
	key := b.get("/web/sign-in", clientToken("ann"), "", "key")
	testkit.WaitFor(t, testkit.Patience, func() error {
		if names := b.machines(key); len(names) != 2 {
			return fmt.Errorf("the page lists %q", names)
		}
		return nil
	})
	return n, b, clients
}

// TestPageWithoutTokens has a gateway without authentication: only a link signs in. A browser
// that signs out ends nothing of others, who are the same principal.
func TestPageWithoutTokens(t *testing.T) {
	t.Parallel()
	n := gateway(t, "--web")
	join(t, []*node{n}, "box")
	listed(t, n, 1)
	b := browser{t, "http://" + n.client, "http://" + n.client}
	if status, text := b.do(http.MethodPost, "/web/sign-in", clientToken("ann"), ""); status != http.StatusUnauthorized {
		t.Errorf("a token: %d %s", status, text)
	}
	direct, err := client.Dial(t.Context(), "ws://"+n.client+"/env/box", &client.Options{NoSession: true, RecoveryTimeout: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	key := b.signIn(n, "")
	if names := b.machines(key); !slices.Equal(names, []string{"box"}) {
		t.Errorf("the page lists %q", names)
	}
	conn, err := b.connect("box", b.get("/web/ticket", key, "", "ticket"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(transport.Reason{})
	b.do(http.MethodPost, "/web/sign-out", key, "")
	testkit.Within(t, "the end of the connection", func() {
		for err == nil {
			_, err = conn.Read(nil)
		}
	})
	if _, err := direct.Sessions(t.Context()); err != nil {
		t.Errorf("another client: %v", err)
	}
}

func clientToken(name string) string { return "the token of the client " + name }

// The page lists and reaches the machines that the token allows which made the link, as its
// principal.
func TestPageOfPrincipal(t *testing.T) {
	t.Parallel()
	n, b, _ := pageGateway(t)
	ann, bob := b.signIn(n, clientToken("ann")), b.signIn(n, clientToken("bob"))
	if names := b.machines(ann); !slices.Equal(names, []string{"box-1", "box-2"}) {
		t.Errorf("ann sees %q", names)
	}
	if names := b.machines(bob); !slices.Equal(names, []string{"box-2"}) {
		t.Errorf("bob sees %q", names)
	}
	owner, err := client.Dial(t.Context(), "ws://"+n.client+"/env/box-2", &client.Options{Token: clientToken("ann")})
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	for key, sees := range map[string]int{ann: 1, bob: 0} {
		env := b.watch("box-2", key)
		sessions, err := env.Sessions(t.Context())
		if err != nil || len(sessions) != sees {
			t.Errorf("of the session of ann, the page lists %+v, %v; want %d", sessions, err, sees)
		}
		_ = env.Close()
	}
	for _, machine := range []string{"box-1", "box-3", "", "../fleet", "../env/box-1", "box-2/../box-1"} {
		if conn, err := b.connect(machine, b.get("/web/ticket", bob, "", "ticket")); err == nil {
			_ = conn.Close(transport.Reason{})
			t.Errorf("bob reaches %q", machine)
		}
	}
}

// TestPageDoors lists what opens nothing.
func TestPageDoors(t *testing.T) {
	t.Parallel()
	n, b, _ := pageGateway(t)
	key := b.signIn(n, clientToken("ann"))
	used := b.get("/web/ticket", key, "", "ticket")
	conn, err := b.connect("box-1", used)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close(transport.Reason{})
	if _, err := b.connect("box-1", used); err == nil {
		t.Error("a ticket is good twice")
	}
	if _, err := b.connect("box-1", key); err == nil {
		t.Error("a key is a ticket")
	}
	if _, err := transport.Dial(t.Context(), "ws://"+n.client+"/env/box-1?ticket="+b.get("/web/ticket", key, "", "ticket"), nil); err == nil {
		t.Error("a ticket is good where clients connect")
	}
	for _, attempt := range []struct {
		what, method, path, bearer, origin string
		status                             int
	}{
		{"the list without a key", "GET", "/web/fleet", "", b.base, 401},
		{"the list with a token", "GET", "/web/fleet", clientToken("ann"), b.base, 401},
		{"the list for a foreign page", "GET", "/web/fleet", key, "http://evil.example", 403},
		{"another method for the list", "POST", "/web/fleet", key, b.base, 405},
		{"the list of the gateway with a key", "GET", "/fleet", key, "", 401},
		{"the list of the gateway for its own page", "GET", "/fleet", clientToken("ann"), b.base, 403},
		{"a link without a token", "POST", "/web/link", "", "", 401},
		{"a link for a key", "POST", "/web/link", key, "", 401},
		{"a link for the page itself", "POST", "/web/link", clientToken("ann"), b.base, 403},
		{"a link for a foreign page", "POST", "/web/link", clientToken("ann"), "http://evil.example", 403},
		{"another method for a link", "GET", "/web/link", clientToken("ann"), "", 405},
	} {
		other := b
		other.origin = attempt.origin
		if status, text := other.do(attempt.method, attempt.path, attempt.bearer, ""); status != attempt.status {
			t.Errorf("%s: %d %s, want %d", attempt.what, status, text, attempt.status)
		}
	}
}

// watch connects to a machine as the page does, until the test ends.
func (b browser) watch(machine, key string) *client.Environment {
	b.t.Helper()
	conn, err := b.connect(machine, b.get("/web/ticket", key, "", "ticket"))
	if err != nil {
		b.t.Fatal(err)
	}
	env, err := client.New(b.t.Context(), conn, &client.Options{NoSession: true})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = env.Close() })
	return env
}

// A browser that signs out, or whose token is gone, loses its connections to machines. Others
// keep theirs.
func TestPageEnds(t *testing.T) {
	t.Parallel()
	n, b, clients := pageGateway(t)
	ends := func(what string, env *client.Environment) {
		t.Helper()
		testkit.Within(t, "the end of "+what, func() { <-env.Done() })
	}
	first, second, bob := b.signIn(n, clientToken("ann")), b.signIn(n, clientToken("ann")), b.signIn(n, clientToken("bob"))
	leaving, staying, revoked := b.watch("box-2", first), b.watch("box-2", second), b.watch("box-2", bob)
	if status, text := b.do(http.MethodPost, "/web/sign-out", first, ""); status != http.StatusOK {
		t.Fatalf("sign out: %d %s", status, text)
	}
	ends("a connection whose browser has signed out", leaving)
	text, err := os.ReadFile(clients)
	if err != nil {
		t.Fatal(err)
	}
	entries := strings.SplitAfterN(string(text), "[[token]]", 3)
	if err := os.WriteFile(clients, []byte(strings.TrimSuffix(entries[0]+entries[1], "[[token]]")), 0o600); err != nil {
		t.Fatal(err)
	}
	ends("a connection whose token is gone", revoked)
	_, err = staying.Sessions(t.Context())
	if err != nil && strings.Contains(err.Error(), "the peer is not reachable") { // the machine or the gateway stood still
		_, err = b.watch("box-2", second).Sessions(t.Context())
	}
	if err != nil {
		t.Errorf("the connection of another key: %v", err)
	}
	for path, method := range map[string]string{"/web/fleet": http.MethodGet, "/web/ticket": http.MethodPost} {
		for who, key := range map[string]string{"who has signed out": first, "whose token is gone": bob} {
			if status, text := b.do(method, path, key, ""); status != http.StatusUnauthorized {
				t.Errorf("%s for somebody %s: %d %s", path, who, status, text)
			}
		}
	}
}

// A browser that signs out while its connections are being made has none afterwards.
func TestPageSignsOutWhileItConnects(t *testing.T) {
	t.Parallel()
	n, b, _ := pageGateway(t)
	for range 5 {
		key := b.signIn(n, clientToken("ann"))
		var wg sync.WaitGroup
		for range 4 {
			ticket := b.get("/web/ticket", key, "", "ticket")
			wg.Go(func() {
				conn, err := b.connect("box-1", ticket)
				if err != nil {
					return
				}
				env, err := client.New(t.Context(), conn, &client.Options{NoSession: true})
				if err != nil {
					_ = conn.Close(transport.Reason{})
					return
				}
				defer env.Close()
				testkit.Within(t, "the end of a connection", func() { <-env.Done() })
			})
		}
		b.do(http.MethodPost, "/web/sign-out", key, "")
		wg.Wait()
	}
}
