package protocol

import (
	"encoding/json"
	"errors"
	"path"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// foreign marks rows whose URI parses but names no path of the host.
const foreign = "foreign"

func TestParsePathOnLinux(t *testing.T) {
	const (
		badHost  = "has an invalid host"
		query    = "has a query"
		fragment = "has a fragment"
	)
	invalid := func(uri string) string { return strconv.Quote(uri) + " names no file on a machine with linux" }
	tests := []struct {
		in     string
		osPath string // or foreign, with wire = the URI named by the error
		wire   string
		err    string
	}{
		// One file, many spellings.
		{in: "file:///etc/hostname", osPath: "/etc/hostname", wire: "file:///etc/hostname"},
		{in: "file://localhost/etc/hostname", osPath: "/etc/hostname", wire: "file:///etc/hostname"},
		{in: "file://LOCALHOST/etc/hostname", osPath: "/etc/hostname", wire: "file:///etc/hostname"},
		{in: "file://%6cocalhost/etc/hostname", osPath: "/etc/hostname", wire: "file:///etc/hostname"},
		{in: "file:/etc/hostname", osPath: "/etc/hostname", wire: "file:///etc/hostname"},
		{in: "file:etc/hostname", osPath: "/etc/hostname", wire: "file:///etc/hostname"},
		{in: "FILE:///etc/hostname", osPath: "/etc/hostname", wire: "file:///etc/hostname"},
		{in: `file:\etc\hostname`, osPath: "/etc/hostname", wire: "file:///etc/hostname"},
		{in: `file:\\localhost\etc\hostname`, osPath: "/etc/hostname", wire: "file:///etc/hostname"},
		{in: " file:///etc/hostname ", osPath: "/etc/hostname", wire: "file:///etc/hostname"},
		{in: "fi\tle:///etc/host\r\nname", osPath: "/etc/hostname", wire: "file:///etc/hostname"},
		{in: "file:///etc/hostname\x01", osPath: "/etc/hostname", wire: "file:///etc/hostname"},
		{in: "file:////etc/hostname", osPath: "/etc/hostname", wire: "file:///etc/hostname"},
		{in: "file:///etc//hostname", osPath: "/etc/hostname", wire: "file:///etc//hostname"},
		{in: "file:///etc/hostname/", osPath: "/etc/hostname", wire: "file:///etc/hostname/"},
		{in: "file:///etc/./x/../hostname", osPath: "/etc/hostname", wire: "file:///etc/hostname"},
		{in: "file:///etc/%2e/%2E%2e/etc/hostname", osPath: "/etc/hostname", wire: "file:///etc/hostname"},
		{in: "file:///etc/x//../../hostname", osPath: "/etc/hostname", wire: "file:///etc/hostname"},
		{in: "file:///etc//../hostname", osPath: "/etc/hostname", wire: "file:///etc/hostname"},
		{in: "file:///../etc/hostname", osPath: "/etc/hostname", wire: "file:///etc/hostname"},
		{in: "file:///etc/%68ostname", osPath: "/etc/hostname", wire: "file:///etc/%68ostname"},
		{in: "file:///etc%2Fhostname", osPath: "/etc/hostname", wire: "file:///etc%2Fhostname"},
		{in: "file:///etc/nodir/%2e%2e%2fhostname", osPath: "/etc/hostname", wire: "file:///etc/nodir/%2e%2e%2fhostname"},
		// The root.
		{in: "file:", osPath: "/", wire: "file:///"},
		{in: "file://", osPath: "/", wire: "file:///"},
		{in: "file:///", osPath: "/", wire: "file:///"},
		{in: "file:////", osPath: "/", wire: "file:///"},
		{in: "file://localhost", osPath: "/", wire: "file:///"},
		{in: "file:///..", osPath: "/", wire: "file:///"},
		{in: "file:///%2E", osPath: "/", wire: "file:///"},
		{in: "file:///a/..", osPath: "/", wire: "file:///"},
		{in: "file:///%2F", osPath: "/", wire: "file:///%2F"},
		{in: "file:///%2e%2e%2f%2e%2e", osPath: "/", wire: "file:///%2e%2e%2f%2e%2e"},
		// Bytes.
		{in: "file:///a b", osPath: "/a b", wire: "file:///a%20b"},
		{in: "file:///srv/a%20b", osPath: "/srv/a b", wire: "file:///srv/a%20b"},
		{in: "file:///ä", osPath: "/ä", wire: "file:///%C3%A4"},
		{in: "file:///%C3%BC", osPath: "/ü", wire: "file:///%C3%BC"},
		{in: "file:///😀", osPath: "/😀", wire: "file:///%F0%9F%98%80"},
		{in: "file:///%FF%fe", osPath: "/\xff\xfe", wire: "file:///%FF%fe"},
		{in: "file:///etc/%zz", osPath: "/etc/%zz", wire: "file:///etc/%zz"},
		{in: "file:///etc/%4", osPath: "/etc/%4", wire: "file:///etc/%4"},
		{in: "file:///a%", osPath: "/a%", wire: "file:///a%"},
		{in: "file:///a%25", osPath: "/a%", wire: "file:///a%25"},
		{in: "file:///a%3Fb%23c", osPath: "/a?b#c", wire: "file:///a%3Fb%23c"},
		{in: "file:///a%5Cb", osPath: `/a\b`, wire: "file:///a%5Cb"},
		{in: "file:///a\"<>`{}[]^|~b", osPath: "/a\"<>`{}[]^|~b", wire: "file:///a%22%3C%3E%60%7B%7D[]^|~b"},
		{in: "file:///etc/ho\x01st", osPath: "/etc/ho\x01st", wire: "file:///etc/ho%01st"},
		{in: "file:///a%00", err: invalid("file:///a%00")},
		{in: "file:///a\x00b", err: invalid("file:///a%00b")},
		{in: "file://server/%00", err: invalid("file://server/%00")},
		{in: "file:///%00", err: invalid("file:///%00")},
		// The fallback form is only for what has no other spelling.
		{in: "file:///%00/bad/path/L2Fi", osPath: foreign, wire: "file:///%00/bad/path/L2Fi"},
		{in: "file:///%00/bad/path/L2EAYg", osPath: foreign, wire: "file:///%00/bad/path/L2EAYg"},
		{in: "file:///%00/bad/path/", err: invalid("file:///%00/bad/path/")},
		{in: "file:///%00/bad/path/!!", err: invalid("file:///%00/bad/path/!!")},
		// What does not belong into a path.
		{in: "file:///etc?q", err: query},
		{in: "file:///etc?", err: query},
		{in: "file:///a?b#c", err: query},
		{in: "file:///a%00?x", err: query},
		{in: "file://server/x?y", err: query},
		{in: "file:?x", err: query},
		{in: "file:///etc#f", err: fragment},
		{in: "file:///a#b?c", err: fragment},
		// Hosts.
		{in: "file://u@h/x", err: badHost},
		{in: "file://h:80/x", err: badHost},
		{in: "file://host:/x", err: badHost},
		{in: "file://:80/x", err: badHost},
		{in: "file://@/x", err: badHost},
		{in: "file://a b/x", err: badHost},
		{in: "file://a%2Fb/x", err: badHost},
		{in: "file://%/x", err: badHost},
		{in: "file://local%00host/x", err: badHost},
		{in: "file://u@h/x?q", err: badHost},
		{in: "file://[zz]/x", err: badHost},
		{in: "file://[::1/x", err: badHost},
		{in: "file://server/share/x", osPath: foreign, wire: "file://server/share/x"},
		{in: "file://SERVER/Share/x/../../..", osPath: foreign, wire: "file://server/"},
		{in: "file://tmp", osPath: foreign, wire: "file://tmp/"},
		{in: "file://./x", osPath: foreign, wire: "file://./x"},
		{in: "file://127.0.0.1/x", osPath: foreign, wire: "file://127.0.0.1/x"},
		{in: "file://[::1]/x", osPath: foreign, wire: "file://[::1]/x"},
		// Drive letters.
		{in: "file:///C:/x", osPath: foreign, wire: "file:///C:/x"},
		{in: "file:///c:/x/../y z", osPath: foreign, wire: "file:///C:/y%20z"},
		{in: "file:///c%3A/x", osPath: foreign, wire: "file:///C%3A/x"},
		{in: "file:///C:", osPath: foreign, wire: "file:///C:"},
		{in: "file:///C:/../../x", osPath: foreign, wire: "file:///C:/x"},
		{in: "file:///C:/a//b/", osPath: foreign, wire: "file:///C:/a//b/"},
		{in: "file:C:/x", osPath: foreign, wire: "file:///C:/x"},
		{in: "file:C|/x", osPath: foreign, wire: "file:///C:/x"},
		{in: "file:/C|/x", osPath: foreign, wire: "file:///C:/x"},
		{in: "file://C:/x", osPath: foreign, wire: "file:///C:/x"},
		{in: "file://c|/x", osPath: foreign, wire: "file:///C:/x"},
		{in: "file:////C:/x", osPath: foreign, wire: "file:///C:/x"},
		{in: "file:///a/../C:/x", osPath: foreign, wire: "file:///C:/x"},
		{in: "file://server/c:/x", osPath: foreign, wire: "file:///C:/x"},
		{in: "file:///C|/x", osPath: "/C|/x", wire: "file:///C|/x"},
		{in: "file:///C:x", osPath: "/C:x", wire: "file:///C:x"},
		{in: "file:C|x", osPath: "/C|x", wire: "file:///C|x"},
		{in: "file:///Cx:/x", osPath: "/Cx:/x", wire: "file:///Cx:/x"},
		{in: "file:///x/C:/y", osPath: "/x/C:/y", wire: "file:///x/C:/y"},
		{in: "file:///%43:/x", osPath: "/C:/x", wire: "file:///%43:/x"},
		// Other schemes, and no scheme.
		{in: "http://x/y?z", err: errNotAbsolute},
		{in: `C:\x`, err: errNotAbsolute},
		{in: "mailto:x", err: errNotAbsolute},
		{in: "A+b:x", err: errNotAbsolute},
		{in: "", err: errNotAbsolute},
		{in: "rel", err: errNotAbsolute},
		{in: "file", err: errNotAbsolute},
		{in: "~", err: errNotAbsolute},
		{in: "~/x", err: errNotAbsolute},
		{in: `\\srv\share`, err: errNotAbsolute},
		{in: "1a:x", err: errNotAbsolute},
		{in: "a_b:x", err: errNotAbsolute},
		{in: ":x", err: errNotAbsolute},
		{in: "\u00a0file:///etc", err: errNotAbsolute},
		// In the form of the operating system.
		{in: "/", osPath: "/", wire: "/"},
		{in: "/srv/x", osPath: "/srv/x", wire: "/srv/x"},
		{in: "//srv//x/", osPath: "/srv/x", wire: "/srv/x"},
		{in: "/a/./b/../c", osPath: "/a/c", wire: "/a/c"},
		{in: "/../..", osPath: "/", wire: "/"},
		{in: "/a?b#c%20d", osPath: "/a?b#c%20d", wire: "/a?b#c%20d"},
		{in: "/C:/x", osPath: "/C:/x", wire: "/C:/x"},
		{in: "/\xff", osPath: "/\xff", wire: "file:///%FF"},
		{in: "/a\x00b", err: invalid("/a\x00b")},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			p, err := parsePath("linux", tt.in)
			if tt.err != "" {
				pathErr, ok := errors.AsType[*PathError](err)
				if !ok || !strings.Contains(pathErr.Error(), tt.err) || pathErr.Spelling != tt.in {
					t.Fatalf("error = %#v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if p.String() != tt.wire {
				t.Errorf("wire = %q, want %q", p, tt.wire)
			}
			want := tt.osPath
			if want == foreign {
				want = ""
			}
			if p.osPath != want {
				t.Errorf("osPath = %q, want %q", p.osPath, want)
			}
			again, err := parsePath("linux", p.String())
			if err != nil || again != p {
				t.Errorf("parsing %q again: %+v, %v; want %+v", p, again, err, p)
			}
		})
	}
}

func TestParsePathOnWindows(t *testing.T) {
	tests := []struct{ in, osPath, wire string }{
		{`C:\x`, `C:\x`, `C:\x`},
		{`c:/x/../y/`, `C:\y`, `C:\y`},
		{`C:\`, `C:\`, `C:\`},
		{`\\srv\share\x\.`, `\\srv\share\x`, `\\srv\share\x`},
		{`\\srv\share`, `\\srv\share\`, `\\srv\share\`},
		{`\\?\C:\x`, `\\?\C:\x`, `\\?\C:\x`},
		{"file:///C:/x", `C:\x`, "file:///C:/x"},
		{"file:///C:", `C:\`, "file:///C:"},
		{"file:///c%3A/a%20b", `C:\a b`, "file:///C%3A/a%20b"},
		{"file://srv/share/x", `\\srv\share\x`, "file://srv/share/x"},
		{"file://srv", "", "file://srv/"},
		{"file:///a/b", "", "file:///a/b"},
	}
	for _, tt := range tests {
		p, err := parsePath("windows", tt.in)
		if err != nil {
			t.Errorf("%s: %v", tt.in, err)
		} else if p.osPath != tt.osPath || p.wire != tt.wire {
			t.Errorf("%s: osPath %q wire %q, want %q %q", tt.in, p.osPath, p.wire, tt.osPath, tt.wire)
		}
	}
	for _, in := range []string{"/a", `\a`, "a", `C:a`} {
		if p, err := parsePath("windows", in); err == nil {
			t.Errorf("%s: accepted as %+v", in, p)
		}
	}
	for osPath, uri := range map[string]string{
		`C:\x y`:          "file:///C:/x%20y",
		`\\srv\share\x`:   "file://srv/share/x",
		`\\?\C:\very\odd`: "file:///%00/bad/path/XFw_XEM6XHZlcnlcb2Rk",
	} {
		p := uriPath("windows", osPath)
		if p.wire != uri {
			t.Errorf("%s: URI %s, want %s", osPath, p.wire, uri)
		}
		if again, err := parsePath("windows", uri); err != nil || again.osPath != osPath {
			t.Errorf("%s: osPath %q, %v; want %q", uri, again.osPath, err, osPath)
		}
	}
}

func TestURIPathSpelling(t *testing.T) {
	needPOSIX(t)
	for osPath, want := range map[string]string{
		"/":              "file:///",
		"/a b%c":         "file:///a%20b%25c",
		"/ä\xff":         "file:///%C3%A4%FF",
		`/a\b?#`:         "file:///a%5Cb%3F%23",
		"/[x]^y|z~'()*;": "file:///[x]^y|z~'()*;",
		"/C:":            "file:///%43:",
		"/c|/x":          "file:///%63|/x",
		"/C:x":           "file:///C:x",
		"/%2e%2e":        "file:///%252e%252e",
		"/a\x00b":        "file:///%00/bad/path/L2EAYg",
	} {
		if got := URIPath(osPath).String(); got != want {
			t.Errorf("%q: %s, want %s", osPath, got, want)
		}
	}
}

func TestPathKeepsTheFormOfTheRequest(t *testing.T) {
	needPOSIX(t)
	plain, _ := ParsePath("/a/b")
	uri, _ := ParsePath("file:///a/b")
	for _, tt := range []struct {
		p            Path
		osPath, want string
	}{
		{plain, "/x y", "/x y"},
		{uri, "/x y", "file:///x%20y"},
		{plain, "/x\xff", "file:///x%FF"}, // no plain JSON spelling exists
		{Path{}, "/x", "/x"},
	} {
		got := tt.p.WithOSPath(tt.osPath)
		if got.String() != tt.want {
			t.Errorf("%v with %q: %s, want %s", tt.p, tt.osPath, got, tt.want)
		}
		if n, err := got.OSPath(); err != nil || n != tt.osPath {
			t.Errorf("%v: osPath %q, %v; want %q", got, n, err, tt.osPath)
		}
	}
	if plain.IsURI() || !uri.IsURI() || plain.IsZero() || !(Path{}).IsZero() {
		t.Error("IsURI or IsZero is wrong")
	}
}

func TestForeignPath(t *testing.T) {
	p, err := ParsePath("file://server/share")
	if err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS == "windows" {
		t.Skip("a share is osPath here")
	}
	_, err = p.OSPath()
	foreignErr, ok := errors.AsType[*ForeignPathError](err)
	if !ok || foreignErr.URI != "file://server/share" {
		t.Fatalf("error = %#v", err)
	}
	if want := `"file://server/share" names no file on a machine with ` + OSName(runtime.GOOS); err.Error() != want {
		t.Errorf("text = %s, want %s", err, want)
	}
}

func TestPathJSON(t *testing.T) {
	needPOSIX(t)
	type params struct {
		Path    Path  `json:"path"`
		Present Path  `json:"present,omitzero"`
		Other   *Path `json:"other,omitempty"`
	}
	var got params
	if err := json.Unmarshal([]byte(`{"path":"file:///a b","present":null}`), &got); err != nil {
		t.Fatal(err)
	}
	if want := (params{Path: URIPath("/a b")}); got != want {
		t.Error(cmp.Diff(want.Path.String(), got.Path.String()))
	}
	out, err := json.Marshal(got)
	if want := `{"path":"file:///a%20b"}`; err != nil || string(out) != want {
		t.Errorf("marshal: %s, %v; want %s", out, err, want)
	}
	for in, want := range map[string]string{
		`5`:     "expected a string, got 5",
		`true`:  "expected a string, got a boolean",
		`{}`:    "expected a string, got an object",
		`["x"]`: "expected a string, got an array",
		`"x"`:   `"x" is neither an absolute path nor a file: URI`,
	} {
		err := json.Unmarshal([]byte(`{"path":`+in+`}`), &got)
		if pathErr, ok := errors.AsType[*PathError](err); !ok || pathErr.Error() != want {
			t.Errorf("%s: %v, want %s", in, err, want)
		}
	}
}

func FuzzURIPathRoundTrip(f *testing.F) {
	needPOSIX(f)
	for _, s := range []string{"a/b", "C:/x", "c|", "%2e%2e/%", `a\b`, "\xff\xfe", "ä 😀", "?#", "%00/bad/path/L2Fi", "\n\t ", "a/../b//c/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.IndexByte(s, 0) >= 0 {
			return
		}
		osPath := path.Clean("/" + s)
		for _, p := range []Path{URIPath("/" + s), OSPath("/" + s)} {
			again, err := ParsePath(p.String())
			if err != nil || again != p {
				t.Fatalf("%q: parsed %q as %+v, %v", osPath, p, again, err)
			}
			if got, err := again.OSPath(); err != nil || got != osPath {
				t.Fatalf("%q came back as %q, %v", osPath, got, err)
			}
			wire, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			var decoded Path
			if err := json.Unmarshal(wire, &decoded); err != nil || decoded != p {
				t.Fatalf("%s decoded as %+v, %v", wire, decoded, err)
			}
		}
	})
}

func FuzzParsePath(f *testing.F) {
	for _, s := range []string{"", "/", "file:///a", "file://h/x", "file:C|/..", "file:////..//C:/..", "file:///%00/bad/path/L2EAYg", "file://[::1]/", "FILE:\\a\t", "/a/../\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, goos := range []string{"linux", "windows"} {
			p, err := parsePath(goos, s)
			if err != nil {
				if _, ok := errors.AsType[*PathError](err); !ok || !p.IsZero() {
					t.Fatalf("%q: %+v, %#v", s, p, err)
				}
				continue
			}
			if p.IsZero() {
				t.Fatalf("%q: zero path without error", s)
			}
			again, err := parsePath(goos, p.String())
			if err != nil || again != p {
				t.Fatalf("%s: %q is %+v, again %+v, %v", goos, s, p, again, err)
			}
			if goos == "linux" && p.osPath != "" && (p.osPath[0] != '/' || p.osPath != path.Clean(p.osPath) || strings.IndexByte(p.osPath, 0) >= 0) {
				t.Fatalf("%q: osPath %q is not clean and absolute", s, p.osPath)
			}
		}
	})
}

func needPOSIX(tb testing.TB) {
	if runtime.GOOS == "windows" {
		tb.Skip("POSIX paths")
	}
}
