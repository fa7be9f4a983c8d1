//go:build unix

package transport_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"execserver/transport"
)

func TestCheckUpgrade(t *testing.T) {
	const (
		connection = "Connection header did not include 'upgrade'"
		upgrade    = "`Upgrade` header did not include 'websocket'"
		version    = "`Sec-WebSocket-Version` header did not include '13'"
		key        = "`Sec-WebSocket-Key` header missing"
		method     = "Request method must be `GET`"
	)
	for _, test := range []struct {
		name   string
		method string
		change map[string][]string // nil removes
		status int
		text   string
	}{
		{name: "plain"},
		{name: "other case", change: map[string][]string{"Connection": {"UPGRADE"}, "Upgrade": {"WebSocket"}}},
		{name: "lists", change: map[string][]string{"Connection": {"keep-alive ,  upgrade"}, "Upgrade": {"h2c, websocket"}}},
		{name: "several lines", change: map[string][]string{"Connection": {"keep-alive", "x, Upgrade"}}},
		{name: "extensions", change: map[string][]string{"Sec-WebSocket-Extensions": {"permessage-deflate"}, "Sec-WebSocket-Protocol": {"a, b"}}},
		{name: "nothing", change: map[string][]string{"Connection": nil, "Upgrade": nil, "Sec-WebSocket-Version": nil, "Sec-WebSocket-Key": nil}, status: 400, text: connection},
		{name: "no connection", change: map[string][]string{"Connection": nil}, status: 400, text: connection},
		{name: "other connection", change: map[string][]string{"Connection": {"keep-alive, upgraded"}}, status: 400, text: connection},
		{name: "no upgrade", change: map[string][]string{"Upgrade": nil}, status: 400, text: upgrade},
		{name: "other upgrade", change: map[string][]string{"Upgrade": {"websocket2"}}, status: 400, text: upgrade},
		{name: "no version", change: map[string][]string{"Sec-WebSocket-Version": nil}, status: 400, text: version},
		{name: "other version", change: map[string][]string{"Sec-WebSocket-Version": {"8"}}, status: 400, text: version},
		{name: "no key", change: map[string][]string{"Sec-WebSocket-Key": nil}, status: 400, text: key},
		{name: "empty key", change: map[string][]string{"Sec-WebSocket-Key": {""}}, status: 400, text: key},
		{name: "version before key", change: map[string][]string{"Sec-WebSocket-Version": nil, "Sec-WebSocket-Key": nil}, status: 400, text: version},
		{name: "post", method: "POST", status: 405, text: method},
		{name: "head", method: "HEAD", status: 405, text: method},
		{name: "method first", method: "PUT", change: map[string][]string{"Connection": nil}, status: 405, text: method},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.method == "" {
				test.method = http.MethodGet
			}
			r := httptest.NewRequest(test.method, "/?query", nil)
			r.Header = http.Header{
				"Connection": {"Upgrade"}, "Upgrade": {"websocket"},
				"Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="},
			}
			for name, values := range test.change {
				r.Header.Del(name)
				for _, value := range values {
					r.Header.Add(name, value)
				}
			}
			status, text := transport.CheckUpgrade(r)
			if status != test.status || text != test.text {
				t.Errorf("%d %q, want %d %q", status, text, test.status, test.text)
			}
		})
	}
}

// TestUpgradeWithData has a peer that does not wait for the answer.
func TestUpgradeWithData(t *testing.T) {
	near, peer := dialRaw(t, 0, append(frame(fin|text, "at once"), frame(text, "half")...)...)
	peer.send(frame(fin|continuation, " a message"))
	for _, want := range []string{"at once", "half a message"} {
		if got, err := near.Read(nil); err != nil || string(got) != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	if !strings.Contains(near.Remote(), peer.conn.LocalAddr().String()) {
		t.Errorf("the name %q does not name the peer %s", near.Remote(), peer.conn.LocalAddr())
	}
}

func TestUpgradeCannotHijack(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	if conn, err := transport.Upgrade(httptest.NewRecorder(), r, 0); conn != nil || err == nil {
		t.Errorf("%v, %v", conn, err)
	}
}
