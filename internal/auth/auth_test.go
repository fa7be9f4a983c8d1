package auth_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"

	"execserver/internal/auth"
	"execserver/internal/testkit"
)

// The texts of refusals, as clients see them.
const (
	allowed        = ""
	missingToken   = "missing websocket bearer token"
	invalidHeader  = "invalid authorization header"
	invalidQuery   = "invalid token query parameter"
	invalidToken   = "invalid websocket bearer token"
	invalidJWT     = "invalid websocket jwt"
	expiredJWT     = "expired websocket jwt"
	earlyJWT       = "websocket jwt is not valid yet"
	issuerMismatch = "websocket jwt issuer mismatch"
	audMismatch    = "websocket jwt audience mismatch"
)

// request has the given Authorization headers; a single empty string stands for none.
func request(headers ...string) *http.Request {
	r := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/"}, Header: http.Header{}}
	if len(headers) != 1 || headers[0] != "" {
		r.Header["Authorization"] = headers
	}
	return r
}

// queryRequest has the given raw query and Authorization headers.
func queryRequest(query string, headers ...string) *http.Request {
	r := request(headers...)
	if len(headers) == 0 {
		r.Header.Del("Authorization")
	}
	r.URL.RawQuery = query
	return r
}

// check decides about a request. Either a principal or a refusal comes.
func check(a *auth.Authenticator, r *http.Request) *auth.Refusal {
	principal, refusal := a.Authenticate(r)
	if (principal == nil) == (refusal == nil) {
		panic("both a principal and a refusal, or neither")
	}
	return refusal
}

// verdict is the text of the refusal, or allowed.
func verdict(a *auth.Authenticator, r *http.Request) string {
	refusal := check(a, r)
	if refusal == nil {
		return allowed
	}
	return refusal.Error()
}

func TestCheckHeader(t *testing.T) {
	tests := []struct {
		name    string
		headers []string
		want    string
	}{
		{"no header", nil, missingToken},
		{"good", []string{"Bearer tok-0123456789abc"}, allowed},
		{"scheme in lower case", []string{"bearer tok-0123456789abc"}, allowed},
		{"scheme in mixed case", []string{"bEARER tok-0123456789abc"}, allowed},
		{"spaces around token", []string{"Bearer   tok-0123456789abc  "}, allowed},
		{"tabs around token", []string{"Bearer \ttok-0123456789abc\t"}, allowed},
		{"spaces before scheme", []string{"  Bearer tok-0123456789abc"}, allowed},
		{"tab after scheme", []string{"Bearer\ttok-0123456789abc"}, invalidHeader},
		{"empty header", []string{""}, invalidHeader},
		{"scheme alone", []string{"Bearer"}, invalidHeader},
		{"empty token", []string{"Bearer "}, invalidHeader},
		{"blank token", []string{"Bearer  \t "}, invalidHeader},
		{"no space", []string{"Bearertok-0123456789abc"}, invalidHeader},
		{"raw token", []string{"tok-0123456789abc"}, invalidHeader},
		{"other scheme", []string{"Basic tok-0123456789abc"}, invalidHeader},
		{"longer scheme", []string{"Bearers tok-0123456789abc"}, invalidHeader},
		{"wrong token", []string{"Bearer tok-abd"}, invalidToken},
		{"prefix of token", []string{"Bearer tok-ab"}, invalidToken},
		{"token and more", []string{"Bearer tok-0123456789abcd"}, invalidToken},
		{"token in upper case", []string{"Bearer TOK-ABC"}, invalidToken},
		{"two words", []string{"Bearer tok-0123456789abc x"}, invalidToken},
		{"digest as token", []string{"Bearer " + capabilityDigest}, invalidToken},
		{"list in one header", []string{"Bearer tok-0123456789abc,Bearer tok-0123456789abc"}, invalidToken},
		{"byte over 127", []string{"Bearer tok-0123456789abc\xff"}, invalidHeader},
		{"no-break space", []string{"Bearer tok-0123456789abc\u00a0"}, invalidHeader},
		{"byte over 127 in scheme", []string{"Bear\xffer tok-0123456789abc"}, invalidHeader},
		{"control character", []string{"Bearer tok-0123456789abc\x0b"}, invalidHeader},
		{"line break", []string{"Bearer tok-0123456789abc\n"}, invalidHeader},
		{"NUL", []string{"Bearer tok-0123456789abc\x00"}, invalidHeader},
		{"DEL", []string{"Bearer tok-0123456789abc\x7f"}, invalidHeader},
		{"same header twice", []string{"Bearer tok-0123456789abc", "Bearer tok-0123456789abc"}, invalidHeader},
		{"good and bad header", []string{"Bearer tok-0123456789abc", "Bearer bad"}, invalidHeader},
		{"bad and good header", []string{"Basic x", "Bearer tok-0123456789abc"}, invalidHeader},
	}
	authenticators := map[string]*auth.Authenticator{
		"file":   newAuthenticator(t, auth.Config{TokenFile: testkit.Secret(t, capabilityToken)}),
		"digest": newAuthenticator(t, auth.Config{TokenSHA256: capabilityDigest}),
		"query":  newAuthenticator(t, auth.Config{TokenSHA256: capabilityDigest, AllowQueryToken: true}),
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &http.Request{URL: &url.URL{Path: "/"}, Header: http.Header{}}
			if tt.headers != nil {
				r.Header["Authorization"] = tt.headers
			}
			for name, a := range authenticators {
				if got := verdict(a, r); got != tt.want {
					t.Errorf("%s: got %q, want %q", name, got, tt.want)
				}
			}
		})
	}
}

func TestCheckQuery(t *testing.T) {
	tests := []struct {
		name   string
		query  string
		header string // "" = none
		want   string
	}{
		{"none", "", "", missingToken},
		{"other parameters", "a=b&Token=tok-0123456789abc&tokens=x", "", missingToken},
		{"good", "token=tok-0123456789abc", "", allowed},
		{"good among others", "a=b&token=tok-0123456789abc&c=%zz", "", allowed},
		{"escaped", "token=%74ok%2D0123456789abc", "", allowed},
		{"spaces around", "token=+tok-0123456789abc%09", "", allowed},
		{"wrong", "token=tok-abd", "", invalidToken},
		{"empty", "token=", "", invalidQuery},
		{"no value", "token", "", invalidQuery},
		{"twice", "token=tok-0123456789abc&token=tok-0123456789abc", "", invalidQuery},
		{"bad escape", "token=tok-0123456789abc%zz", "", invalidQuery},
		{"semicolon", "token=tok-0123456789abc;a=b", "", invalidQuery},
		{"line break", "token=tok-0123456789abc%0A", "", invalidQuery},
		{"not ASCII", "token=tok-0123456789abc%C2%A0", "", invalidQuery},
		{"scheme in query", "token=Bearer+tok-0123456789abc", "", invalidToken},
		{"header wins when both are good", "token=tok-0123456789abc", "Bearer tok-0123456789abc", allowed},
		{"good header, bad query", "token=bad&token=bad", "Bearer tok-0123456789abc", allowed},
		{"bad header, good query", "token=tok-0123456789abc", "Bearer bad", invalidToken},
		{"malformed header, good query", "token=tok-0123456789abc", "Basic tok-0123456789abc", invalidHeader},
	}
	on := newAuthenticator(t, auth.Config{TokenSHA256: capabilityDigest, AllowQueryToken: true})
	off := newAuthenticator(t, auth.Config{TokenSHA256: capabilityDigest})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := queryRequest(tt.query, tt.header)
			if got := verdict(on, r); got != tt.want {
				t.Errorf("allowed: got %q, want %q", got, tt.want)
			}
			// Switched off, the query must make no difference at all.
			if got, want := verdict(off, r), verdict(off, request(tt.header)); got != want {
				t.Errorf("not allowed: got %q, want %q", got, want)
			}
		})
	}

	// The server's request always has a URL; one made by hand may not.
	r := request("")
	r.URL = nil
	if got := verdict(on, r); got != missingToken {
		t.Errorf("no URL: got %q, want %q", got, missingToken)
	}
}

// TestRefusalOverHTTP sends real requests, so that what net/http does to headers on the way
// is part of the test.
func TestRefusalOverHTTP(t *testing.T) {
	a := newAuthenticator(t, auth.Config{TokenSHA256: capabilityDigest})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refusal := check(a, r); refusal != nil {
			refusal.ServeHTTP(w, r)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer server.Close()

	type answer struct {
		Status       int
		Body         string
		ContentType  string
		Length       int64
		Authenticate []string
	}
	refused := func(text string) answer {
		return answer{http.StatusUnauthorized, text, "text/plain; charset=utf-8", int64(len(text)), nil}
	}
	tests := []struct {
		name    string
		headers []string
		want    answer
	}{
		{"good", []string{" Bearer  tok-0123456789abc "}, answer{Status: http.StatusNoContent}},
		{"missing", nil, refused(missingToken)},
		{"empty", []string{" "}, refused(invalidHeader)},
		{"wrong", []string{"Bearer x"}, refused(invalidToken)},
		{"two", []string{"Bearer tok-0123456789abc", "Bearer tok-0123456789abc"}, refused(invalidHeader)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header["Authorization"] = tt.headers
			resp, err := server.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			got := answer{resp.StatusCode, string(body), resp.Header.Get("Content-Type"), resp.ContentLength, resp.Header["Www-Authenticate"]}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}
