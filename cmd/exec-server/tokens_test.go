//go:build unix

package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/transcript"
	"execserver/protocol"
)

// as connects to a server with a token, and with a certificate if config has one.
func as(t *testing.T, p *program, token string, config *tls.Config) *wireClient {
	t.Helper()
	conn, err := transcript.DialWebSocket(context.Background(), p.url, config, http.Header{"Authorization": {"Bearer " + token}})
	if err != nil {
		t.Fatal(err)
	}
	return newWireClient(t, conn)
}

func digestOf(token string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(token))) }

// replaceFile replaces a file with another one, as editors do.
func replaceFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func logged(t *testing.T, p *program, text string) {
	t.Helper()
	if err := p.stderr.await(testkit.Patience, func(all string) bool { return strings.Contains(all, text) }); err != nil {
		t.Fatalf("%q is not logged: %v: %s", text, err, p.stderr.text())
	}
}

// TestTokensFile presents the tokens of a file, and others.
func TestTokensFile(t *testing.T) {
	t.Parallel()
	s := newSigner(t)
	dir := t.TempDir()
	for name, content := range map[string]string{
		"keys.json": s.jwks,
		"secret":    secret,
		"tokens": `
[[token]]
name = "ann"
scope = ["full"]
sha256 = "` + digestOf("the token of ann") + `"
[[token]]
name = "past"
scope = ["full"]
sha256 = "` + digestOf("the token of the past") + `"
expires = 2020-01-01T00:00:00Z
[[token]]
name = "short"
scope = ["full"]
sha256 = "` + digestOf("short") + `"
[[token]]
name = "builders"
scope = ["full"]
jwks = "keys.json"
issuer = "me"
[[token]]
name = "scripts"
scope = ["full"]
secret = "` + filepath.Join(dir, "secret") + `"
audience = "scripts"
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := newServer(t, "--tokens", filepath.Join(dir, "tokens"), "--log-level=info")
	exp := time.Now().Unix() + 600
	for _, e := range []exchange{
		{name: "a token", request: bearer("the token of ann"), status: 101},
		{name: "another token", request: bearer("the token of bob"), status: 401, body: "invalid websocket bearer token"},
		{name: "the digest", request: bearer(digestOf("the token of ann")), status: 401, body: "invalid websocket bearer token"},
		{name: "the name", request: bearer("ann"), status: 401, body: "invalid websocket bearer token"},
		{name: "an expired token", request: bearer("the token of the past"), status: 401, body: "expired websocket bearer token"},
		{name: "a short token", request: bearer("short"), status: 401, body: "websocket bearer token is right, but shorter than 16 bytes; the server needs a longer one"},
		{name: "none", request: upgrade, status: 401, body: "missing websocket bearer token"},
		{name: "EdDSA", request: bearer(s.token("ed", `{"alg":"EdDSA"}`, fmt.Sprintf(`{"exp":%d,"iss":"me"}`, exp))), status: 101},
		{name: "RS256", request: bearer(s.token("rsa", `{"alg":"RS256"}`, fmt.Sprintf(`{"exp":%d,"iss":"me"}`, exp))), status: 101},
		{name: "HS256", request: bearer(s.token(secret, `{"alg":"HS256"}`, fmt.Sprintf(`{"exp":%d,"aud":"scripts"}`, exp))), status: 101},
		{name: "HS256 for the other entry", request: bearer(s.token(secret, `{"alg":"HS256"}`, fmt.Sprintf(`{"exp":%d,"iss":"me"}`, exp))), status: 401, body: "websocket jwt audience mismatch"},
		{name: "EdDSA of another issuer", request: bearer(s.token("ed", `{"alg":"EdDSA"}`, fmt.Sprintf(`{"exp":%d,"iss":"x"}`, exp))), status: 401, body: "websocket jwt issuer mismatch"},
		{name: "another key", request: bearer(s.token("bad", `{"alg":"EdDSA"}`, fmt.Sprintf(`{"exp":%d,"iss":"me"}`, exp))), status: 401, body: "invalid websocket jwt"},
	} {
		t.Run(e.name, func(t *testing.T) { e.check(t, p) })
	}
	logged(t, p, "principal=builders:jwt:me:")
}

// TestRevocation changes a tokens file while it is in use.
func TestRevocation(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens")
	entry := func(name, more string) string {
		return fmt.Sprintf("[[token]]\nname = %q\nscope = [\"full\"]\nsha256 = %q\n%s\n", name, digestOf("the token of "+name), more)
	}
	replaceFile(t, file, entry("ann", "")+entry("bob", ""))
	p := newServer(t, "--tokens", file)
	const revoked = "the credentials of this connection have been revoked or changed"
	ann, bob := as(t, p, "the token of ann", nil), as(t, p, "the token of bob", nil)
	session := ann.handshake("")
	bob.handshake("")

	replaceFile(t, file, "[[token]\nthe token of eve")
	logged(t, p, "the previous credentials still apply")
	if text := p.stderr.text(); !strings.Contains(text, "cannot be understood") || strings.Contains(text, "token of eve") {
		t.Errorf("the log says: %s", text)
	}
	as(t, p, "the token of ann", nil).handshake("")

	replaceFile(t, file, entry("bob", "")+entry("eve", ""))
	ann.disconnected(revoked)
	exchange{request: bearer("the token of ann"), status: 401, body: "invalid websocket bearer token"}.check(t, p)
	as(t, p, "the token of eve", nil).handshake("")

	replaceFile(t, file, entry("bob", "max_session = \"1h\"")+entry("ann", ""))
	bob.disconnected(revoked)
	as(t, p, "the token of ann", nil).unknown(session) // although her token is valid again
}

// unknown fails the test if the session can be resumed.
func (c *wireClient) unknown(session string) {
	c.t.Helper()
	err := c.try("initialize", object{"clientName": "test", "resumeSessionId": session}, nil)
	if want := "unknown session id " + session; err == nil || err.Message != want {
		c.t.Errorf("to resume the session says %v, want %q", err, want)
	}
}

// TestChangedEntries changes tokens while their sessions run something.
func TestChangedEntries(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens")
	const full = "scope = [\"full\"]"
	rows := []struct {
		name, after string // the changed entry; "" removes it
		ends, stays bool   // whether the connection ends, and whether the session stays
	}{
		{"narrowed", "scope = [\"exec\"]\ncommands = [[\"/bin/true\"]]\nmax_session = \"5s\"", true, false},
		{"sandboxed", full + "\n[token.sandbox]", true, false},
		{"removed", "", true, false},
		{"expired", full + "\nexpires = 2020-01-01T00:00:00Z", true, false},
		{"prolonged", full + "\nexpires = 2100-01-01T00:00:00Z", true, true},
		{"respelled", "# the same\nscope = [ 'full' ]", false, true},
	}
	var before, after strings.Builder
	for _, row := range rows {
		head := fmt.Sprintf("[[token]]\nname = %q\nsha256 = %q\n", row.name, digestOf("the token of "+row.name))
		before.WriteString(head + full + "\n")
		if row.after != "" {
			after.WriteString(head + row.after + "\n")
		}
	}
	replaceFile(t, file, before.String())
	p := newServer(t, "--tokens", file)
	clients, sessions, pids := make([]*wireClient, len(rows)), make([]string, len(rows)), make([]int, len(rows))
	for i, row := range rows {
		clients[i] = as(t, p, "the token of "+row.name, nil)
		sessions[i] = clients[i].handshake("")
		pids[i] = clients[i].script("echo $$; exec sleep 1000")[0]
	}
	replaceFile(t, file, after.String())
	logged(t, p, "read the credentials again")
	for i, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			if !row.ends {
				clients[i].call("environment/status", nil, nil)
				return
			}
			clients[i].disconnected("the credentials of this connection have been revoked or changed")
			if row.stays {
				if got := as(t, p, "the token of "+row.name, nil).handshake(sessions[i]); got != sessions[i] || !testkit.Alive(pids[i]) {
					t.Errorf("resumed %s, want %s; its process is alive: %t", got, sessions[i], testkit.Alive(pids[i]))
				}
				return
			}
			testkit.Gone(t, pids[i])
			if row.name == "narrowed" || row.name == "sandboxed" {
				as(t, p, "the token of "+row.name, nil).unknown(sessions[i])
			}
		})
	}
}

// TestRenewedCertificates replaces the server's certificate and the authority of its
// clients.
func TestRenewedCertificates(t *testing.T) {
	first, second := testkit.NewAuthority(t, "first"), testkit.NewAuthority(t, "second")
	dir := t.TempDir()
	cert, key, clients := filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "clients")
	use := func(a *testkit.Authority) {
		t.Helper()
		newCert, newKey := a.Server()
		for to, from := range map[string]string{cert: newCert, key: newKey, clients: a.File} {
			content, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			replaceFile(t, to, string(content))
		}
	}
	of := func(a *testkit.Authority) *tls.Config {
		return &tls.Config{RootCAs: a.Roots(), Certificates: []tls.Certificate{a.Client("ann", nil)}}
	}
	use(first)
	p := newServer(t, "--listen=wss://127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", clients)
	before := as(t, p, "", of(first))
	before.handshake("")
	use(second)
	if err := p.signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	before.disconnected("the credentials of this connection have been revoked or changed")
	testkit.WaitFor(t, testkit.Patience, func() error {
		if status, body := askTLS(t, p, of(second), upgrade); status != 101 {
			return fmt.Errorf("got %d %q", status, body)
		}
		return nil
	})
	if status, _ := askTLS(t, p, &tls.Config{RootCAs: second.Roots(), Certificates: of(first).Certificates}, upgrade); status != 0 {
		t.Errorf("a client of the first authority gets %d", status)
	}
}

// TestCertificateAndToken uses both: a client whose certificate has an entry needs no
// token, and other clients do.
func TestCertificateAndToken(t *testing.T) {
	t.Parallel()
	ours := testkit.NewAuthority(t, "ours")
	cert, key := ours.Server()
	file := filepath.Join(t.TempDir(), "tokens")
	replaceFile(t, file, fmt.Sprintf("[[token]]\nname = \"ann\"\nscope = [\"full\"]\ncertificate = \"ann\"\n[[token]]\nname = \"bob\"\nscope = [\"full\"]\nsha256 = %q\n"+
		"[[token]]\nname = \"past\"\nscope = [\"full\"]\ncertificate = \"past\"\nexpires = 2020-01-01T00:00:00Z\n", digestOf("the token of bob")))
	p := newServer(t, "--listen=wss://127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ours.File, "--tokens", file)
	const token = "|Authorization: Bearer the token of bob"
	for _, row := range []struct {
		name, subject, more string
		status              int
		body                string
	}{
		{"its entry", "ann", "", 101, ""},
		{"its entry, and a token", "ann", token, 101, ""},
		{"its entry, and a wrong token", "ann", token + "x", 401, "invalid websocket bearer token"},
		{"another, and a token", "bob", token, 101, ""},
		{"another without a token", "bob", "", 401, "missing websocket bearer token"},
		{"in other letters", "Ann", "", 401, "missing websocket bearer token"},
		{"an expired entry", "past", "", 401, "missing websocket bearer token"},
	} {
		t.Run(row.name, func(t *testing.T) {
			config := &tls.Config{RootCAs: ours.Roots(), Certificates: []tls.Certificate{ours.Client(row.subject, nil)}}
			if status, body := askTLS(t, p, config, upgrade+row.more); status != row.status || body != row.body {
				t.Errorf("got %d %q, want %d %q", status, body, row.status, row.body)
			}
		})
	}
	t.Run("a token without a certificate", func(t *testing.T) {
		if status, _ := askTLS(t, p, &tls.Config{RootCAs: ours.Roots()}, upgrade+token); status != 0 {
			t.Errorf("got %d", status)
		}
	})
	t.Run("a certificate that expires", func(t *testing.T) {
		// On a busy machine it may expire before the connection stands.
		var c *wireClient
		for valid := 3 * time.Second; c == nil; valid *= 2 {
			soon := ours.Client("ann", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(valid) })
			conn, err := transcript.DialWebSocket(context.Background(), p.url, &tls.Config{RootCAs: ours.Roots(), Certificates: []tls.Certificate{soon}}, nil)
			if err == nil {
				c = newWireClient(t, conn)
				if err = c.Handshake(context.Background(), protocol.InitializeParams{ClientName: "test"}); err != nil {
					c = nil
				}
			}
			if err != nil && valid > testkit.Patience {
				t.Fatal(err)
			}
		}
		c.disconnected("the credentials of this connection have expired; connect again with new ones to resume the session")
	})
}

// TestNoTokensLeft removes the last token from the file. Nobody may connect then, least
// of all with a certificate that never sufficed.
func TestNoTokensLeft(t *testing.T) {
	t.Parallel()
	ours := testkit.NewAuthority(t, "ours")
	cert, key := ours.Server()
	file := filepath.Join(t.TempDir(), "tokens")
	args := []string{"--listen=wss://127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ours.File, "--tokens", file}
	config := &tls.Config{RootCAs: ours.Roots(), Certificates: []tls.Certificate{ours.Client("ann", nil)}}
	const missing = "missing websocket bearer token"
	nobody := func(when string, p *program) {
		t.Helper()
		if status, body := askTLS(t, p, config, upgrade); status != 401 || body != missing {
			t.Errorf("%s: a certificate alone gets %d %q, want 401 %q", when, status, body, missing)
		}
		if status, body := askTLS(t, p, config, upgrade+"|Authorization: Bearer the token of bob"); status != 401 {
			t.Errorf("%s: a token gets %d %q, want 401", when, status, body)
		}
	}
	replaceFile(t, file, fmt.Sprintf("[[token]]\nname = \"bob\"\nscope = [\"full\"]\nsha256 = %q\n", digestOf("the token of bob")))
	p := newServer(t, args...)
	bob := as(t, p, "the token of bob", config)
	bob.handshake("")
	replaceFile(t, file, "# there is none\n")
	bob.disconnected("the credentials of this connection have been revoked or changed")
	nobody("after the last one", p)
	nobody("started without any", newServer(t, args...))
}
