package connect

import (
	"fmt"
	"testing"
)

func TestParsePorts(t *testing.T) {
	for arg, want := range map[string]string{
		"3000":                      "localhost:3000 tcp localhost:3000",
		"8080:3000":                 "localhost:8080 tcp localhost:3000",
		"0:3000":                    "localhost:0 tcp localhost:3000",
		"web:3000":                  "localhost:3000 tcp web:3000",
		"8080:localhost:3000":       "localhost:8080 tcp localhost:3000",
		"0.0.0.0:8080:db:5432":      "0.0.0.0:8080 tcp db:5432",
		"[::1]:3000":                "localhost:3000 tcp [::1]:3000",
		"8080:[2001:db8::1]:3000":   "localhost:8080 tcp [2001:db8::1]:3000",
		"[::1]:8080:[fe80::1]:3000": "[::1]:8080 tcp [fe80::1]:3000",
		"2375:/run/docker.sock":     "localhost:2375 unix /run/docker.sock",
		"0.0.0.0:8080:3000":         "0.0.0.0:8080 tcp localhost:3000",
		"127.0.0.2:1:/a:b":          "127.0.0.2:1 unix /a:b",
	} {
		p, err := parsePorts(arg)
		if got := fmt.Sprintf("%s %s %s", p.local, p.network, p.address); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", arg, got, err, want)
		}
	}
	for _, arg := range []string{
		"", ":", "x", "70000", "0", "80:0", "80:x", "x:80:y", "a:b:c:80", ":80", "80::80", ":80:x:80", "/run/docker.sock", "x:/run/s", "[::1]", "[::1:80", "-1",
	} {
		if p, err := parsePorts(arg); err == nil {
			t.Errorf("%q is accepted: %+v", arg, p)
		}
	}
}
