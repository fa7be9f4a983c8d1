//go:build unix

package server_test

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/server"
)

// TestNobodyWithoutAuth asks a server that was not told whom to admit. It refuses every
// WebSocket client, and does not listen.
func TestNobodyWithoutAuth(t *testing.T) {
	const want = "admits no WebSocket clients: its Options.Auth is nil"
	srv := server.New(nil)
	t.Cleanup(func() { testkit.Shutdown(t, srv) })
	own := httptest.NewServer(srv.Handler())
	t.Cleanup(own.Close)
	_, err := client.Dial(t.Context(), "ws"+strings.TrimPrefix(own.URL, "http"), nil)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Dial: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.ServeWebSocket(l) }()
	select {
	case err := <-served:
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ServeWebSocket: %v", err)
		}
	case <-time.After(testkit.Patience):
		t.Error("ServeWebSocket serves")
	}
	if err := l.Close(); !errors.Is(err, net.ErrClosed) { // the port may be somebody else's by now
		t.Error("it listens")
	}
}

// TestHandlerInOwnServer has a program serve the handler by an http.Server of its own,
// with a token, and by name without.
func TestHandlerInOwnServer(t *testing.T) {
	token, err := server.NewAuthenticator(server.AuthConfig{Token: "correct horse battery"})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		auth  *server.Authenticator
		token string
		fails bool
	}{
		"token":           {token, "correct horse battery", false},
		"wrong token":     {token, "wrong", true},
		"no token":        {token, "", true},
		"unauthenticated": {server.Unauthenticated, "", false},
	} {
		srv := server.New(&server.Options{Auth: test.auth})
		mux := http.NewServeMux()
		mux.Handle("/", srv.Handler())
		own := httptest.NewServer(mux)
		env, err := client.Dial(t.Context(), "ws"+strings.TrimPrefix(own.URL, "http"), &client.Options{Token: test.token})
		if (err != nil) != test.fails {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			out, err := env.Command(t.Context(), "echo", "hello").Output()
			if string(out) != "hello\n" || err != nil {
				t.Errorf("%s: %q, %v", name, out, err)
			}
			_ = env.Close()
		}
		testkit.Shutdown(t, srv)
		own.Close()
	}
}

// TestAuthConfig makes authenticators of configurations that contradict themselves.
func TestAuthConfig(t *testing.T) {
	long := strings.Repeat("a", 16)
	for want, config := range map[string]server.AuthConfig{
		"neither tokens nor a ClientCAFile": {},
		"only one of Token, TokenFile":      {Token: long, TokenFile: "b"},
		"more than one kind of token":       {Token: long, TokensFile: "b"},
		"are about signed tokens":           {Token: long, Issuer: "b"},
		"must have at least 16":             {Token: "a"},
		"no such file":                      {TokensFile: "/no/such/file"},
	} {
		_, err := server.NewAuthenticator(config)
		if err == nil || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(want)) || strings.Contains(err.Error(), "--") {
			t.Errorf("%+v: %v, want %q", config, err, want)
		}
	}
}
