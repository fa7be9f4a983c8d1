package httprequest_test

import (
	"net/url"
	"testing"

	"execserver/internal/httprequest"
)

// TestParseURL compares with the requests that the released server sends for the same
// text.
func TestParseURL(t *testing.T) {
	for text, want := range map[string]string{
		"http://h":             "http://h/",
		"HTTP://H.Example:80/": "http://h.example/",
		"https://h:443/":       "https://h/",
		"https://h:80/":        "https://h:80/",
		"http://h:080/":        "http://h/",
		"http://h:/":           "http://h/",
		"http://h:0/":          "http://h:0/",

		// Any number of slashes.
		"http:h/x":          "http://h/x",
		"http:/h/x":         "http://h/x",
		"http:///h/x":       "http://h/x",
		`http:\\h\x`:        "http://h/x",
		`http:/\h:1\@other`: "http://h:1/@other",

		// White space and controls.
		"  http://h/x  ":         "http://h/x",
		"\x01 http://h/x \x00":   "http://h/x",
		"h\nttp://h\t/a\rb":      "http://h/ab",
		"http://h/a b?c d#e f":   "http://h/a%20b?c%20d",
		"http://h/\x01\x7f":      "http://h/%01%7F",
		"http://h/ü?ü=ü":         "http://h/%C3%BC?%C3%BC=%C3%BC",
		"http://h/\u2028😀":       "http://h/%E2%80%A8%F0%9F%98%80",
		"http://h/?é\x01\x7f":    "http://h/?%C3%A9%01%7F",
		"http://h/?a=b?c#d#e":    "http://h/?a=b?c",
		"http://h?x":             "http://h/?x",
		"http://h#f":             "http://h/",
		"http://h/?":             "http://h/?",
		"http://h/%41?%41":       "http://h/%41?%41",
		"http://h/a;b,c":         "http://h/a;b,c",
		"http://h/[]":            "http://h/[]",
		"http://h/~!$&'()*+,;=":  "http://h/~!$&'()*+,;=",
		"http://h/:@-._":         "http://h/:@-._",
		"http://h/`{}\"<>'":      "http://h/%60%7B%7D%22%3C%3E'",
		"http://h/?`{}\"<>'|^\\": "http://h/?`{}%22%3C%3E%27|^\\",
		// The released server sends these unescaped, which means the same.
		"http://h/|^%zz%": "http://h/%7C%5E%25zz%25",
		"http://h/?%zz":   "http://h/?%zz",

		"http://h/a/../b/./c":     "http://h/b/c",
		"http://h/a/%2e%2E/b":     "http://h/b",
		"http://h/a/.%2e/.%2E":    "http://h/",
		"http://h/..":             "http://h/",
		"http://h/a/..":           "http://h/",
		"http://h/a/.":            "http://h/a/",
		"http://h/a//b/":          "http://h/a//b/",
		"http://h/a//../b":        "http://h/a/b",
		`http://h/..\..\a`:        "http://h/a",
		"http://h/...":            "http://h/...",
		"http://h/%2F%2e":         "http://h/%2F%2e",
		"http://h//../../../../a": "http://h/a",

		"http://user@h/":      "http://user:@h/",
		"http://:pw@h/":       "http://:pw@h/",
		"http://@h/":          "http://h/",
		"http://u:p%40w@h/":   "http://u:p%40w@h/",
		"http://u:p:q@h/":     "http://u:p%3Aq@h/",
		"http://u:p@@h/":      "http://u:p%40@h/",
		"http://a%3ab:c%zz@h": "http://a%3Ab:c%25zz@h/",

		"http://0x7f.1/":              "http://127.0.0.1/",
		"http://2130706433/":          "http://127.0.0.1/",
		"http://0177.0.0.1/":          "http://127.0.0.1/",
		"http://127.1:80/":            "http://127.0.0.1/",
		"http://127.0.0.1./":          "http://127.0.0.1/",
		"http://0/":                   "http://0.0.0.0/",
		"http://0x/":                  "http://0.0.0.0/",
		"http://%31%32%37.0.0.1/":     "http://127.0.0.1/",
		"http://1.2.3.0xg/":           "http://1.2.3.0xg/",
		"http://1.2.3.4a/":            "http://1.2.3.4a/",
		"http://[::1]:81/":            "http://[::1]:81/",
		"http://[0:0::0:1]/":          "http://[::1]/",
		"http://[::FFFF:127.0.0.1]/x": "http://[::ffff:127.0.0.1]/x",
		"http://exa%41mple.invalid/":  "http://exaample.invalid/",
		"http://é.invalid/":           "http://%C3%A9.invalid/",
		"http://a_b/":                 "http://a_b/",
		"http://a..b.invalid/":        "http://a..b.invalid/",
	} {
		if u, err := httprequest.ParseURL(text, nil); err != nil || u.String() != want {
			t.Errorf("%q: %v, %v, want %s", text, u, err, want)
		}
	}
	for text, want := range map[string]string{
		"":                "it has no scheme",
		"/x":              "it has no scheme",
		"//h/":            "it has no scheme",
		"foo":             "it has no scheme",
		"1http://h":       "it has no scheme",
		"ht!tp://h":       "it has no scheme",
		"http ://h":       "it has no scheme",
		"\u00a0http://h/": "it has no scheme",

		"ftp://h/":            "the unsupported scheme ftp",
		"HTtps+x://h/":        "the unsupported scheme https+x",
		"file:///etc/x":       "the unsupported scheme file",
		"mailto:x":            "the unsupported scheme mailto",
		"blob:http://x":       "the unsupported scheme blob",
		"ws://h/":             "the unsupported scheme ws",
		"http:":               "it has no host",
		"http://":             "it has no host",
		"http://u:p@/":        "it has no host",
		"http://:80/":         "it has no host",
		"http://?x":           "it has no host",
		"http://h:99999/":     "its port is not a number up to 65535",
		"http://h:x/":         "its port is not a number up to 65535",
		"http://h:+80/":       "its port is not a number up to 65535",
		"http://a:b:c/":       "its port is not a number up to 65535",
		"http://[::1/":        "its host is not an IPv6 address",
		"http://[::g]/":       "its host is not an IPv6 address",
		"http://[1::2::3]":    "its host is not an IPv6 address",
		"http://[127.0.0.1]/": "its host is not an IPv6 address",
		"http://[::1%25eth0]": "its host is not an IPv6 address",
		"http://[::1]x/":      "its host is not an IPv6 address",
		"http://256.1.1.1/":   "its host is not an IPv4 address",
		"http://1.2.3.4.5/":   "its host is not an IPv4 address",
		"http://1.2.3.256/":   "its host is not an IPv4 address",
		"http://1.16777216/":  "its host is not an IPv4 address",
		"http://09.1.1.1/":    "its host is not an IPv4 address",
		"http://1..2/":        "its host is not an IPv4 address",
		"http://0xffffffff1/": "its host is not an IPv4 address",
		"http://a b/":         "its host is not a domain name",
		"http://h%zz/":        "its host is not a domain name",
		"http://a%00b/":       "its host is not a domain name",
		"http://a%20b/":       "its host is not a domain name",
		"http://a%2fb/":       "its host is not a domain name",
		"http://a^b/":         "its host is not a domain name",
		"http://a|b/":         "its host is not a domain name",
		"http://ex<ample/":    "its host is not a domain name",
		"http://a`b/":         "its host is not a domain name",
		"http://a{b}/":        "its host is not a domain name",
		"http://%ff/":         "its host is not a domain name",
	} {
		if u, err := httprequest.ParseURL(text, nil); err == nil || err.Error() != want {
			t.Errorf("%q: %v, %v, want %s", text, u, err, want)
		}
	}
}

func TestParseReference(t *testing.T) {
	base, err := httprequest.ParseURL("http://h:81/a/b%20c?q=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"":                "http://h:81/a/b%20c?q=1",
		"#f":              "http://h:81/a/b%20c?q=1",
		"?":               "http://h:81/a/b%20c",
		"?z z":            "http://h:81/a/b%20c?z%20z",
		"x":               "http://h:81/a/x",
		"x y?z":           "http://h:81/a/x%20y?z",
		"../../x":         "http://h:81/x",
		`..\x`:            "http://h:81/x",
		"/x":              "http://h:81/x",
		"//i/x":           "http://i/x",
		`\\i\x`:           "http://i/x",
		"https://i/":      "https://i/",
		"http:x":          "http://h:81/a/x",
		"http:/x":         "http://h:81/x",
		"http://i":        "http://i/",
		"https:x":         "https://x/",
		"x:y":             "the unsupported scheme x",
		"file:///etc":     "the unsupported scheme file",
		"http://":         "it has no host",
		"//[::1/":         "its host is not an IPv6 address",
		"//h:99999/":      "its port is not a number up to 65535",
		"javascript:x(1)": "the unsupported scheme javascript",
	} {
		u, err := httprequest.ParseURL(text, base)
		if err == nil && u.String() != want || err != nil && err.Error() != want {
			t.Errorf("%q: %v, %v, want %s", text, u, err, want)
		}
	}
}

// FuzzParseURL compares accepted URLs with net/url: the URL as text means the same there,
// and parsing it again changes nothing.
func FuzzParseURL(f *testing.F) {
	for _, s := range []string{
		"http://h/", "HTTPS://u:p@[::1]:443/a/../b?c d#e", `http:\\h\x`, "http:///%zz", "ftp://x", "//i/x", "x", "?q", "http://0x7f.1",
		"http://h:065536/", "http://é/ü", "h\tttp:/", "http://a%00b", "http://[::ffff:1.2.3.4]:1", "http://@:@h", "http://1.2.3.", "\x00http:/ /",
	} {
		f.Add(s)
	}
	base, err := httprequest.ParseURL("http://base/d/f", nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, base := range []*url.URL{nil, base} {
			u, err := httprequest.ParseURL(text, base)
			if err != nil {
				if len(err.Error()) > 2<<10 {
					t.Fatalf("%q: an error of %d bytes", text, len(err.Error()))
				}
				continue
			}
			if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Fragment != "" || u.Opaque != "" {
				t.Fatalf("%q: %#v", text, u)
			}
			target := u.RequestURI()
			for _, c := range []byte(target) {
				if c <= ' ' || c >= 0x7f {
					t.Fatalf("%q: the target %q holds %q", text, target, c)
				}
			}
			if target[0] != '/' || u.EscapedPath() != u.RawPath {
				t.Fatalf("%q: target %q, path %q, raw %q", text, target, u.EscapedPath(), u.RawPath)
			}
			again, err := httprequest.ParseURL(u.String(), nil)
			if err != nil || again.String() != u.String() {
				t.Fatalf("%q: %v, again %v, %v", text, u, again, err)
			}
			std, err := url.Parse(u.String())
			if err != nil || std.Scheme != u.Scheme || std.RequestURI() != target || std.User.String() != u.User.String() {
				t.Fatalf("%q: %v, net/url reads %v, %v", text, u, std, err)
			}
			// net/url reads an ordinary URL in the same way.
			if std, err := url.Parse(text); err == nil && base == nil && std.String() == text && again.String() == text && std.Host != u.Host {
				t.Fatalf("%q: host %q, net/url has %q", text, u.Host, std.Host)
			}
		}
	})
}
