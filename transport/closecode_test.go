package transport_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"execserver/transport"
)

// TestReservedCloseCodes closes with codes that no peer may send, as a relay does that passes
// on what another peer said. The client gets a code that it understands.
func TestReservedCloseCodes(t *testing.T) {
	codes := make(chan int, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := transport.Upgrade(w, r, 1<<20)
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.Close(transport.Reason{Code: <-codes, Text: "it ends"})
		_, _ = conn.Read(nil) // the answer
	}))
	defer srv.Close()
	for _, row := range []struct{ code, want int }{
		{0, 1000},
		{1, 1011},
		{1004, 1011},
		{1005, 1011},
		{1006, 1011},
		{1015, 1011},
		{2999, 1011},
		{5000, 1011},
		{65535, 1011},
		{1000, 1000},
		{1001, 1001},
		{1003, 1003},
		{1007, 1007},
		{1014, 1014},
		{3000, 3000},
		{4999, 4999},
	} {
		codes <- row.code
		conn, err := transport.Dial(t.Context(), "ws"+strings.TrimPrefix(srv.URL, "http"), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Read(nil)
		if peer, ok := errors.AsType[*transport.PeerClosedError](err); !ok || peer.Reason != (transport.Reason{Code: row.want, Text: "it ends"}) {
			t.Errorf("%d: %v", row.code, err)
		}
		_ = conn.Close(transport.Reason{})
	}
}
