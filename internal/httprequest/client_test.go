package httprequest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"execserver/internal/httprequest"
)

func client(t *testing.T) *httprequest.Client {
	t.Helper()
	c, err := httprequest.NewClient(nil, func() (func(), error) { return func() {}, nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func clearProxies(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"} {
		t.Setenv(name, "")
		t.Setenv(strings.ToLower(name), "")
	}
}

// TestProxyEnvironment sends requests to three targets. The letters say which of them
// used the proxy: the target's address (a), localhost (l), and a name that only a proxy
// can know (n).
func TestProxyEnvironment(t *testing.T) {
	// Asking a name server for a name that does not exist may take seconds.
	resolver := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = resolver })
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("no name server")
	}}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(299) }))
	defer proxy.Close()
	target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer target.Close()
	_, port, _ := net.SplitHostPort(target.Listener.Addr().String())
	_, proxyPort, _ := net.SplitHostPort(proxy.Listener.Addr().String())
	for _, test := range []struct{ env, want string }{
		{"", ""},
		{"HTTP_PROXY=PROXY", "aln"},
		{"http_proxy=PROXY", "aln"},
		{"ALL_PROXY=PROXY", "aln"},
		{"all_proxy=PROXY", "aln"},
		{"HTTPS_PROXY=PROXY", ""},
		{"HTTP_PROXY=127.0.0.1:" + proxyPort, "aln"},
		{"HTTP_PROXY=PROXY ALL_PROXY=http://127.0.0.1:1", "aln"},
		{"HTTP_PROXY=PROXY http_proxy=http://127.0.0.1:1", "aln"},
		{"HTTP_PROXY=PROXY REQUEST_METHOD=GET", ""},
		{"http_proxy=PROXY REQUEST_METHOD=GET", "aln"},
		{"HTTP_PROXY=PROXY NO_PROXY=*", ""},
		{"HTTP_PROXY=PROXY no_proxy=*", ""},
		{"HTTP_PROXY=PROXY NO_PROXY=127.0.0.1", "ln"},
		{"HTTP_PROXY=PROXY NO_PROXY=127.0.0.0/8", "ln"},
		{"HTTP_PROXY=PROXY NO_PROXY=127.0.0.1:" + port, "ln"},
		{"HTTP_PROXY=PROXY NO_PROXY=127.0.0.1:1", "aln"},
		{"HTTP_PROXY=PROXY NO_PROXY=::1,10.0.0.0/8,[::1]:80", "aln"},
		{"HTTP_PROXY=PROXY NO_PROXY=localhost", "an"},
		{"HTTP_PROXY=PROXY NO_PROXY=LocalHost:" + port, "an"},
		{"HTTP_PROXY=PROXY NO_PROXY=host", "aln"},
		{"HTTP_PROXY=PROXY NO_PROXY=invalid", "al"},
		{"HTTP_PROXY=PROXY NO_PROXY=.invalid", "al"},
		{"HTTP_PROXY=PROXY NO_PROXY=*.invalid", "al"},
		{"HTTP_PROXY=PROXY NO_PROXY=x.invalid:80,,", "al"},
		{"HTTP_PROXY=PROXY NO_PROXY=lid,foo.invalid,.", "aln"},
	} {
		t.Run(test.env, func(t *testing.T) {
			clearProxies(t)
			for assignment := range strings.FieldsSeq(test.env) {
				name, value, _ := strings.Cut(assignment, "=")
				t.Setenv(name, strings.Replace(value, "PROXY", proxy.URL, 1))
			}
			c := client(t)
			got := ""
			for i, url := range []string{target.URL, "http://localhost:" + port, "http://x.invalid/"} {
				response, err := c.Do(t.Context(), &httprequest.Request{Method: "GET", URL: url})
				switch {
				case err == nil:
					if response.Status == 299 {
						got += "aln"[i : i+1]
					}
					_ = response.Body.Close()
				case !strings.Contains(url, "invalid"):
					t.Errorf("%s: %v", url, err)
				}
			}
			if got != test.want {
				t.Errorf("through the proxy went %q, want %q", got, test.want)
			}
		})
	}
}

// TestProxyUnusable checks that an unusable proxy is an error without the password in the
// setting.
func TestProxyUnusable(t *testing.T) {
	clearProxies(t)
	for value, want := range map[string]string{
		"ftp://u:secret@h": `HTTP_PROXY names a proxy of the scheme "ftp"; http, https, socks5 and socks5h are known`,
		"://secret":        "the value of HTTP_PROXY is not the URL of a proxy",
		"http://h:secret":  "the value of HTTP_PROXY is not the URL of a proxy",
		"http://":          "the value of HTTP_PROXY is not the URL of a proxy",
	} {
		t.Setenv("HTTP_PROXY", value)
		_, err := client(t).Do(t.Context(), &httprequest.Request{Method: "GET", URL: "http://127.0.0.1:1/"})
		if send, ok := errors.AsType[*httprequest.SendError](err); !ok || send.Err.Error() != want {
			t.Errorf("%s: %v, want %s", value, err, want)
		}
	}
}

// TestConnectionLimit connects to a server that never completes its handshake: net/http
// keeps connecting although no request waits any more.
func TestConnectionLimit(t *testing.T) {
	clearProxies(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const limit = 256
	var open atomic.Int64
	errTooMany := errors.New("too many")
	admit := func() (release func(), err error) {
		release = func() { open.Add(-1) }
		if open.Add(1) > limit {
			release()
			return nil, errTooMany
		}
		return release, nil
	}
	accepted := make(chan struct{}, limit)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- struct{}{}
			wg.Go(func() {
				_, _ = io.Copy(io.Discard, conn) // until the client closes it
				_ = conn.Close()
			})
		}
	})
	c, err := httprequest.NewClient(nil, admit)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	do := func(ctx context.Context) error {
		_, err := c.Do(ctx, &httprequest.Request{Method: "GET", URL: "https://" + l.Addr().String()})
		return err
	}
	// Connections whose requests have given up count, as long as they are open.
	gave := errors.New("no patience")
	ctx, giveUp := context.WithCancelCause(t.Context())
	var requests sync.WaitGroup
	for range limit {
		requests.Go(func() {
			if err := do(ctx); !errors.Is(err, gave) {
				t.Errorf("a request that gave up: %v", err)
			}
		})
	}
	for range limit {
		<-accepted
	}
	giveUp(gave)
	requests.Wait()
	if err := do(t.Context()); !errors.Is(err, errTooMany) {
		t.Errorf("%v, want %v", err, errTooMany)
	}
	// Close ends them all.
	c.Close()
	_ = l.Close()
	wg.Wait()
	if err := do(t.Context()); err == nil || errors.Is(err, errTooMany) {
		t.Errorf("afterwards: %v", err)
	}
}

// TestSecretsOfRedirects redirects requests with headers that hold a variable of the
// environment, finally back to their origin. Only the origin that the caller named may
// see the variable.
func TestSecretsOfRedirects(t *testing.T) {
	clearProxies(t)
	t.Setenv("API_KEY", "key")
	var mu sync.Mutex
	var seen []string
	note := func(who string, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, who+" "+r.Header.Get("X-Api-Key")+" "+r.Header.Get("X-Plain"))
	}
	var own, other *httptest.Server
	other = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		note("other", r)
		http.Redirect(w, r, own.URL+"/end", http.StatusFound)
	}))
	defer other.Close()
	own = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		note("own", r)
		switch r.URL.Path {
		case "/":
			http.Redirect(w, r, "/near", http.StatusFound)
		case "/near":
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		}
	}))
	defer own.Close()
	variable := "API_KEY"
	response, err := client(t).Do(t.Context(), &httprequest.Request{
		Method: "GET", URL: own.URL, FollowRedirects: true,
		Headers: []httprequest.Header{{Name: "X-Api-Key", Value: "Key ", ValueEnvVar: &variable}, {Name: "X-Plain", Value: "plain"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if want := []string{"own Key key plain", "own Key key plain", "other  plain", "own  plain"}; !slices.Equal(seen, want) {
		t.Errorf("%q, want %q", seen, want)
	}
}
