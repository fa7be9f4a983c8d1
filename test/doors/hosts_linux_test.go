package doors

import (
	"os"
	"strings"
	"testing"
)

// get returns a request with headers.
func get(path string, headers ...string) string {
	return "GET " + path + " HTTP/1.1\r\n" + strings.Join(headers, "\r\n") + "\r\n\r\n"
}

// TestRebinding sends the requests of a browser for a page whose name now resolves to this
// machine, and for pages from elsewhere.
func TestRebinding(t *testing.T) {
	d := serve(t, os.Geteuid(), "--listen", "ws://127.0.0.1:0", "--allow-host", "box.example", "--allow-origin", "https://page.example", "--allow-origin", "http://localhost:3000")
	port := d.address[strings.LastIndex(d.address, ":"):]
	for _, test := range []struct {
		host   string
		origin []string
		want   int
	}{
		{"127.0.0.1" + port, nil, 101},
		{"127.0.0.1", nil, 101},
		{"127.0.0.1:1", nil, 101}, // a forwarded port
		{"127.255.3.4" + port, nil, 101},
		{"localhost" + port, nil, 101},
		{"LocalHost" + port, nil, 101},
		{"localhost." + port, nil, 101},
		{"[::1]" + port, nil, 101},
		{"[::1]", nil, 101},
		{"[::ffff:127.0.0.1]" + port, nil, 101},
		{"0.0.0.0" + port, nil, 101},
		{"box.example", nil, 101},
		{"BOX.example:443", nil, 101},
		{"evil.example", nil, 403},
		{"evil.example" + port, nil, 403},
		{"box.example.evil.example", nil, 403},
		{"evil.box.example", nil, 403},
		{"localhost.evil.example" + port, nil, 403},
		{"evil.localhost" + port, nil, 403},
		{"127.0.0.1.evil.example", nil, 403},
		{"127.0.0.1.nip.example" + port, nil, 403},
		{"192.0.2.1" + port, nil, 403},
		{"[2001:db8::1]" + port, nil, 403},
		{"10.0.0.1", nil, 403},
		{"127.1", nil, 403},
		{"2130706433", nil, 403},
		{"0x7f000001", nil, 403},
		{"", nil, 403},
		{"localhost:evil.example", nil, 403},
		{"localhost:x@evil.example", nil, 400},
		{"localhost/evil", nil, 400},
		{"localhost localhost", nil, 400},
		{"127.0.0.1" + port, []string{"https://page.example"}, 101},
		{"127.0.0.1" + port, []string{"http://localhost:3000"}, 101},
		{"evil.example" + port, []string{"https://page.example"}, 403},
		{"127.0.0.1" + port, []string{"https://page.example:8443"}, 403},
		{"127.0.0.1" + port, []string{"http://page.example"}, 403},
		{"127.0.0.1" + port, []string{"https://page.example."}, 403},
		{"127.0.0.1" + port, []string{"https://sub.page.example"}, 403},
		{"127.0.0.1" + port, []string{"https://page.example.evil.example"}, 403},
		{"127.0.0.1" + port, []string{"https://evil.example"}, 403},
		{"127.0.0.1" + port, []string{"http://localhost"}, 403},
		{"127.0.0.1" + port, []string{"null"}, 403},
		{"127.0.0.1" + port, []string{""}, 403},
		{"127.0.0.1" + port, []string{"https://page.example", "https://page.example"}, 403},
		{"127.0.0.1" + port, []string{"https://page.example", "https://evil.example"}, 403},
		{"127.0.0.1" + port, []string{"https://page.example, https://evil.example"}, 403},
	} {
		var headers []string
		for _, origin := range test.origin {
			headers = append(headers, "Origin: "+origin)
		}
		if got, body := knock(d.address, upgrade(test.host, "", headers...)); got != test.want {
			t.Errorf("host %q, origins %q: got %d %q, want %d", test.host, test.origin, got, body, test.want)
		}
		probe := get("/readyz", append(headers, "Host: "+test.host)...)
		want := test.want
		if want == 101 {
			want = 200
		}
		if got, body := knock(d.address, probe); got != want {
			t.Errorf("host %q, origins %q, probe: got %d %q, want %d", test.host, test.origin, got, body, want)
		}
	}
}
