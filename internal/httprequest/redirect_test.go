package httprequest_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"execserver/internal/httprequest"
)

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
