package protocol

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/netip"
	"path"
	"runtime"
	"strings"
	"unicode/utf8"
)

// Path is an absolute path as a message spells it: in the host's own syntax
// ("/a/b", on Windows also `C:\a\b`) or as a "file:" URI. The two forms exist
// because released clients speak one or the other, never both, and a reply
// must use the form of its request.
//
// A Path is always clean: dot segments and doubled slashes are gone, lexically,
// before anything is looked up. The zero Path stands for an absent one.
//
// JSON text is Unicode, host paths on Unix are bytes. A path that is not valid
// UTF-8 is therefore always spelled as a URI, whatever form was asked for: it
// is the only spelling a peer can send back unharmed.
//
// Path is comparable; equal Paths name the same file in the same form.
type Path struct {
	wire   string // normalised spelling; "" for the zero Path
	native string // clean path on this host; "" when wire names none
	uri    bool   // wire is a URI
}

// PathError says that a path is misspelled. Its text is what the wire's error
// message says.
type PathError struct {
	Spelling string // as received
	Text     string
}

func (e *PathError) Error() string { return e.Text }

// ForeignPathError says that a well-formed URI names no path on this kind of
// host, such as a drive letter or a network share on Linux.
type ForeignPathError struct {
	URI string // normalised
	OS  string // "linux", "macos", "windows", ...
}

func (e *ForeignPathError) Error() string {
	return fmt.Sprintf("'%s' is invalid on '%s'", e.URI, e.OS)
}

// ParsePath reads a path in either form. The error is a *PathError. A URI that
// is well formed but names a path of another kind of host is no error here;
// Native reports it.
func ParsePath(s string) (Path, error) { return parsePath(runtime.GOOS, s) }

// NativePath returns the Path of an absolute host path, in native form where
// JSON can carry it.
func NativePath(native string) Path { return nativePath(runtime.GOOS, native) }

// URIPath returns the Path of an absolute host path, in URI form.
func URIPath(native string) Path { return uriPath(runtime.GOOS, native) }

// Native returns the clean, absolute host path. The error is a
// *ForeignPathError when p is a URI that names no path on this host.
func (p Path) Native() (string, error) {
	switch {
	case p.native != "":
		return p.native, nil
	case p.wire == "":
		return "", &PathError{Text: errNotAbsolute}
	}
	return "", &ForeignPathError{URI: p.wire, OS: OSName(runtime.GOOS)}
}

// IsURI reports whether p is spelled as a URI.
func (p Path) IsURI() bool { return p.uri }

// IsZero reports whether p is absent.
func (p Path) IsZero() bool { return p.wire == "" }

// WithNative returns the Path of another host path in the form of p, for
// answering a request in the form it used.
func (p Path) WithNative(native string) Path {
	if p.uri {
		return URIPath(native)
	}
	return NativePath(native)
}

// String returns the spelling used on the wire.
func (p Path) String() string { return p.wire }

// MarshalJSON encodes the wire spelling, and the zero Path as null.
func (p Path) MarshalJSON() ([]byte, error) {
	if p.wire == "" {
		return []byte("null"), nil
	}
	return json.Marshal(p.wire)
}

// UnmarshalJSON accepts what ParsePath accepts. A null leaves p alone; whoever
// requires the path checks IsZero. Errors are *PathError.
func (p *Path) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return &PathError{Spelling: string(data), Text: "invalid type: " + jsonKind(data) + ", expected a string"}
	}
	parsed, err := ParsePath(s)
	if err != nil {
		return err
	}
	*p = parsed
	return nil
}

func jsonKind(data []byte) string {
	switch data[0] {
	case '{':
		return "map"
	case '[':
		return "sequence"
	case 't', 'f':
		return "boolean `" + string(data) + "`"
	}
	return "number"
}

// The texts of *PathError, as existing clients and their users know them.
const (
	errNotAbsolute = "invalid URI: relative URL without a base"
	errHost        = "invalid URI: invalid international domain name"
	errIPv6        = "invalid URI: invalid IPv6 address"
	errQuery       = "query parameters are not allowed in path URIs"
	errFragment    = "fragments are not allowed in path URIs"
)

// OSName is the name that clients know a system by whose name in Go is goos.
func OSName(goos string) string {
	if goos == "darwin" {
		return "macos"
	}
	return goos
}

func parsePath(goos, s string) (Path, error) {
	if isAbsNative(goos, s) {
		if strings.IndexByte(s, 0) >= 0 {
			return Path{}, &PathError{Spelling: s, Text: (&ForeignPathError{s, OSName(goos)}).Error()}
		}
		return nativePath(goos, s), nil
	}
	u, text := parseFileURI(s)
	if text != "" {
		return Path{}, &PathError{Spelling: s, Text: text}
	}
	p := Path{wire: u.String(), uri: true}
	raw, isFallback := u.fallback()
	decoded := unescape(strings.Join(u.segments, "/"))
	switch {
	case isFallback:
		// Only a path that has no ordinary spelling may use this form, so that
		// no path has two names. One with a NUL names nothing on any host.
		if strings.IndexByte(raw, 0) < 0 && isAbsNative(goos, raw) && uriPath(goos, raw).wire == p.wire {
			p.native = raw
		}
	case strings.IndexByte(u.host+decoded, 0) >= 0:
		return Path{}, &PathError{Spelling: s, Text: (&ForeignPathError{p.wire, OSName(goos)}).Error()}
	case goos == "windows":
		p.native = u.windows(decoded)
	case u.host == "" && !u.drive():
		p.native = path.Clean("/" + decoded)
	}
	return p, nil
}

func nativePath(goos, native string) Path {
	if !utf8.ValidString(native) || strings.IndexByte(native, 0) >= 0 {
		return uriPath(goos, native)
	}
	native = cleanNative(goos, native)
	return Path{wire: native, native: native}
}

func uriPath(goos, native string) Path {
	fallback := func() string { return fallbackPrefix + base64.RawURLEncoding.EncodeToString([]byte(native)) }
	if strings.IndexByte(native, 0) >= 0 {
		return Path{wire: fallback(), uri: true}
	}
	native = cleanNative(goos, native)
	p := Path{native: native, uri: true}
	switch {
	case goos == "windows":
		prefix, rest := "file:///", native
		if unc, ok := strings.CutPrefix(native, `\\`); ok {
			prefix, rest = "file://", unc
		}
		p.wire = prefix + escape(strings.ReplaceAll(rest, `\`, "/"), false)
		// Not everything a Windows path may start with fits into a URI.
		if again, err := parsePath(goos, p.wire); err != nil || again != p {
			p.wire = fallback()
		}
	case isDrive(native[1:min(3, len(native))]) && (len(native) == 3 || native[3] == '/'):
		// A directory really named "C:" would read as a drive; escaping the
		// letter keeps it a POSIX name for every parser of this protocol.
		p.wire = fmt.Sprintf("file:///%%%02X%s", native[1], escape(native[2:], false))
	default:
		p.wire = "file://" + escape(native, false)
	}
	return p
}

// isVerbatim reports whether a Windows path has a device or verbatim prefix
// (`\\?\`, `\\.\`), after which nothing is interpreted.
func isVerbatim(goos, s string) bool {
	return goos == "windows" && len(s) > 3 && isSlash(s[0]) && isSlash(s[1]) && (s[2] == '?' || s[2] == '.') && isSlash(s[3])
}

func isAbsNative(goos, s string) bool {
	if goos != "windows" {
		return strings.HasPrefix(s, "/")
	}
	if len(s) >= 3 && isDrive(s[:2]) && s[1] == ':' && isSlash(s[2]) {
		return true
	}
	return len(s) > 2 && isSlash(s[0]) && isSlash(s[1]) && !isSlash(s[2])
}

// cleanNative removes dot segments and doubled separators. Unlike path/filepath
// it works for any goos on any host, so that one test covers them all.
func cleanNative(goos, s string) string {
	if goos != "windows" {
		return path.Clean("/" + s)
	}
	if isVerbatim(goos, s) {
		return s
	}
	s = strings.ReplaceAll(s, `\`, "/")
	volume, rest := "", s
	switch {
	case len(s) >= 2 && isDrive(s[:2]):
		volume, rest = strings.ToUpper(s[:1])+":", s[2:]
	case strings.HasPrefix(s, "//"):
		host, after, _ := strings.Cut(s[2:], "/")
		share, tail, _ := strings.Cut(strings.TrimLeft(after, "/"), "/")
		volume, rest = "//"+host, tail
		if share != "" {
			volume += "/" + share
		}
	}
	return strings.ReplaceAll(volume+path.Clean("/"+rest), "/", `\`)
}

const fallbackPrefix = "file:///%00/bad/path/"

// fileURI is a parsed "file:" URI, normalised the way browsers do it. Segments
// are still escaped, as they were spelled.
type fileURI struct {
	host     string
	segments []string
}

func (u fileURI) String() string { return "file://" + u.host + "/" + strings.Join(u.segments, "/") }

// drive reports whether the path starts with a drive letter.
func (u fileURI) drive() bool { return len(u.segments) > 0 && isDriveSegment(u.segments[0]) }

// fallback decodes the form that spells paths which have no URI of their own.
func (u fileURI) fallback() (string, bool) {
	enc, ok := strings.CutPrefix(u.String(), fallbackPrefix)
	if !ok || enc == "" {
		return "", false
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(enc)
	return string(raw), err == nil
}

func (u fileURI) windows(decoded string) string {
	switch {
	case u.host != "" && strings.Trim(decoded, `/\`) != "":
		return cleanNative("windows", "//"+u.host+"/"+decoded)
	case u.host == "" && u.drive():
		return cleanNative("windows", decoded)
	}
	return ""
}

// parseFileURI follows the URL standard's rules for "file:" as far as a path
// can tell: net/url neither accepts what clients send (raw spaces, "%zz",
// backslashes) nor resolves escaped dot segments. The text is "" or says what
// is wrong.
func parseFileURI(s string) (u fileURI, text string) {
	s = strings.TrimFunc(s, func(r rune) bool { return r <= ' ' })
	s = strings.Map(func(r rune) rune {
		if r == '\t' || r == '\n' || r == '\r' {
			return -1
		}
		return r
	}, s)
	scheme, rest, ok := cutScheme(s)
	if !ok {
		return u, errNotAbsolute
	}
	if scheme != "file" {
		return u, "unsupported path URI scheme `" + scheme + "`"
	}
	tail := ""
	if i := strings.IndexAny(rest, "?#"); i >= 0 {
		rest, tail = rest[:i], rest[i:]
	}
	rest = strings.ReplaceAll(rest, `\`, "/")
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		host, p, _ := strings.Cut(after, "/")
		if isDrive(host) {
			rest = driveColon(after)
		} else if u.host, text = parseHost(host); text != "" {
			return u, text
		} else {
			rest = p
		}
	} else {
		rest = driveColon(strings.TrimPrefix(rest, "/"))
	}
	switch {
	case strings.HasPrefix(tail, "?"):
		return u, errQuery
	case tail != "":
		return u, errFragment
	}
	u.segments = resolveSegments(strings.Split(rest, "/"))
	if u.drive() {
		u.host = ""
		u.segments[0] = strings.ToUpper(u.segments[0][:1]) + u.segments[0][1:]
	}
	return u, ""
}

func cutScheme(s string) (scheme, rest string, ok bool) {
	scheme, rest, ok = strings.Cut(s, ":")
	if !ok || scheme == "" || !isAlpha(scheme[0]) {
		return "", "", false
	}
	for _, c := range []byte(scheme) {
		if !isAlpha(c) && (c < '0' || c > '9') && c != '+' && c != '-' && c != '.' {
			return "", "", false
		}
	}
	return strings.ToLower(scheme), rest, true
}

// parseHost checks the authority. Any host but the local one makes a path
// foreign on Unix, so it is validated and lower-cased, not resolved further:
// international names are not converted to punycode.
func parseHost(s string) (host, text string) {
	if s == "" {
		return "", ""
	}
	if s[0] == '[' {
		inner, closed := strings.CutSuffix(s[1:], "]")
		addr, err := netip.ParseAddr(inner)
		if !closed || err != nil || !addr.Is6() || addr.Zone() != "" {
			return "", errIPv6
		}
		return "[" + addr.String() + "]", ""
	}
	host = unescape(s)
	if !utf8.ValidString(host) {
		return "", errHost
	}
	for _, r := range host {
		if r <= ' ' || r == 0x7f || strings.ContainsRune("#%/:<>?@[\\]^|", r) {
			return "", errHost
		}
	}
	if host = strings.ToLower(host); host == "localhost" {
		return "", ""
	}
	return host, ""
}

// resolveSegments removes dot segments, spelled plainly or escaped, and empty
// leading segments. It escapes what may not stand raw in a URI.
func resolveSegments(in []string) []string {
	out := make([]string, 0, len(in))
	for i, seg := range in {
		last := i == len(in)-1
		switch strings.ReplaceAll(strings.ToLower(seg), "%2e", ".") {
		case "..":
			if len(out) > 1 || len(out) == 1 && !isDriveSegment(out[0]) {
				out = out[:len(out)-1]
			}
		case ".":
		default:
			if seg != "" || last || len(out) > 0 {
				out = append(out, escape(seg, true))
			}
			continue
		}
		if last {
			out = append(out, "")
		}
	}
	return out
}

// driveColon turns the historical "C|" at the start of a path into "C:".
func driveColon(s string) string {
	if len(s) >= 2 && isDrive(s[:2]) && (len(s) == 2 || s[2] == '/') {
		return s[:1] + ":" + s[2:]
	}
	return s
}

func isDrive(s string) bool {
	return len(s) == 2 && isAlpha(s[0]) && (s[1] == ':' || s[1] == '|')
}

func isDriveSegment(s string) bool {
	return len(s) >= 2 && isAlpha(s[0]) && (s[1:] == ":" || strings.EqualFold(s[1:], "%3a"))
}

func isAlpha(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }
func isSlash(c byte) bool { return c == '/' || c == '\\' }

const upperHex = "0123456789ABCDEF"

// escape percent-escapes bytes that may not stand raw in a URI path. With
// spelled set, s is URI text already: its own escapes, well formed or not,
// stay as they are.
func escape(s string, spelled bool) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		special := c <= ' ' || c >= 0x7f || strings.IndexByte("\"#<>?`{}", c) >= 0 ||
			!spelled && (c == '%' || c == '\\')
		if !special {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(upperHex[c>>4])
		b.WriteByte(upperHex[c&15])
	}
	return b.String()
}

// unescape decodes well-formed escapes and leaves malformed ones as they are.
func unescape(s string) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			hi, lo := strings.IndexByte(upperHex, upper(s[i+1])), strings.IndexByte(upperHex, upper(s[i+2]))
			if hi >= 0 && lo >= 0 {
				b = append(b, byte(hi<<4|lo))
				i += 2
				continue
			}
		}
		b = append(b, s[i])
	}
	return string(b)
}

func upper(c byte) byte {
	if 'a' <= c && c <= 'z' {
		return c - 0x20
	}
	return c
}

// URIPathOn returns the Path of an absolute path of a machine that runs another
// system, named as runtime.GOOS is, in URI form. It is for clients; Native is
// of no use with it.
func URIPathOn(goos, native string) Path { return uriPath(goos, native) }

// NativeOn returns the native spelling, on a machine that runs goos, of a path
// in either form; "" when s names none there.
func NativeOn(goos, s string) string {
	p, err := parsePath(goos, s)
	if err != nil {
		return ""
	}
	return p.native
}
