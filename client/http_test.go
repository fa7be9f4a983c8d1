//go:build unix

package client_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"execserver/client"
)

// TestAbandonedHTTPRequestsEnd gives requests up in every way. They end on the server, so
// that any number may follow each other: more than a connection may have at a time.
func TestAbandonedHTTPRequestsEnd(t *testing.T) {
	t.Parallel()
	const most = 256 // of one connection
	everywhere(t, func(t *testing.T, env *client.Environment, p place) {
		if p.codex {
			t.Skip("it cannot cancel requests")
		}
		arrived, left := make(chan bool), make(chan bool)
		target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/body" {
				_, _ = io.WriteString(w, "begun")
				_ = http.NewResponseController(w).Flush()
			}
			arrived <- true
			<-r.Context().Done() // the response never ends
			left <- true
		}))
		t.Cleanup(target.Close)
		for name, giveUp := range map[string]func(do func(context.Context, string) *http.Response){
			"close": func(do func(context.Context, string) *http.Response) {
				body := do(t.Context(), "/body").Body
				<-arrived
				if err := body.Close(); err != nil {
					t.Error(err)
				}
			},
			"the context ends": func(do func(context.Context, string) *http.Response) {
				ctx, cancel := context.WithCancel(t.Context())
				do(ctx, "/body")
				<-arrived
				cancel()
			},
			"the context ends before the answer": func(do func(context.Context, string) *http.Response) {
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					<-arrived
					cancel()
				}()
				if do(ctx, "/") != nil {
					t.Error("there is an answer")
				}
			},
		} {
			for i := range most + 1 {
				if i > 2 && name != "close" {
					break
				}
				giveUp(func(ctx context.Context, path string) *http.Response {
					r, err := http.NewRequestWithContext(ctx, http.MethodGet, target.URL+path, nil)
					if err != nil {
						t.Fatal(err)
					}
					response, err := env.Transport().RoundTrip(r)
					if err != nil && ctx.Err() == nil {
						t.Fatalf("%s, request %d: %v", name, i, err)
					}
					return response
				})
				<-left
			}
		}
	})
}
