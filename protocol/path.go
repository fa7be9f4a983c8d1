package protocol

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/netip"
	"path"
	"runtime"
	"strings"
	"syscall"
	"unicode/utf8"
)

// Path is an absolute path as a message spells it: in the syntax of the
// operating system ("/a/b", on Windows also `C:\a\b`) or as a "file:" URI. The
// two forms exist because released clients speak one or the other, never both,
// and a reply must use the form of its request.
//
// A Path is always clean: parsing removes dot segments and doubled slashes lexically. The
// zero Path means that a path is absent.
//
// JSON text is Unicode, but Unix paths are bytes. So a path that is not valid UTF-8 is always
// spelled as a URI, the only form that a peer can send back unchanged.
//
// Paths are comparable. Equal Paths name the same file in the same form.
type Path struct {
	wire   string // normalised spelling; "" for the zero Path
	osPath string // the clean path on this host; "" when wire names none
	uri    bool   // wire is a URI
}

// PathError reports a malformed path.
type PathError struct {
	Spelling string // as received
	Text     string
}

func (e *PathError) Error() string { return e.Text }

// ForeignPathError reports a well-formed URI whose path cannot exist on this operating
// system, such as one with a drive letter on Linux.
type ForeignPathError struct {
	URI string // normalised
	OS  string // "linux", "macos", "windows", ...
}

func (e *ForeignPathError) Error() string {
	return fmt.Sprintf("%s names no file on a machine with %s", quote(e.URI), e.OS)
}

// ParsePath parses a path in either form. The error is a *PathError. ParsePath accepts URIs of
// paths of another operating system, for which the method OSPath returns an error.
func ParsePath(s string) (Path, error) { return parsePath(runtime.GOOS, s) }

// OSPath returns the Path of an absolute path of this host, in the syntax of the operating
// system, or as a URI if JSON cannot represent the path.
func OSPath(osPath string) Path { return plainPath(runtime.GOOS, osPath) }

// URIPath returns the Path of an absolute path of this host, in URI form.
func URIPath(osPath string) Path { return uriPath(runtime.GOOS, osPath) }

// maxPathBytes is the length of the longest path that the system accepts.
var maxPathBytes = map[bool]int{false: 4<<10 - 1, true: 32<<10 - 1}[runtime.GOOS == "windows"]

// OSPath returns the clean, absolute path on this host. The error is a
// *ForeignPathError when p is a URI that names no path on this host, and a *PathError
// when the path is longer than the system accepts.
func (p Path) OSPath() (string, error) {
	switch {
	case len(p.osPath) > maxPathBytes:
		return "", &PathError{Text: fmt.Sprintf("the path is %d bytes long, the limit is %d: %s (os error %d)",
			len(p.osPath), maxPathBytes, syscall.ENAMETOOLONG, int(syscall.ENAMETOOLONG))}
	case p.osPath != "":
		return p.osPath, nil
	case p.wire == "":
		return "", &PathError{Text: "the path is missing"}
	}
	return "", &ForeignPathError{URI: p.wire, OS: OSName(runtime.GOOS)}
}

// IsURI reports whether p is spelled as a URI.
func (p Path) IsURI() bool { return p.uri }

// IsZero reports whether p is absent.
func (p Path) IsZero() bool { return p.wire == "" }

// WithOSPath returns the Path of another path of this host, in the same form as p. An answer
// must use the form of its request.
func (p Path) WithOSPath(osPath string) Path {
	if p.uri {
		return URIPath(osPath)
	}
	return OSPath(osPath)
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

// UnmarshalJSON accepts what ParsePath accepts. A null leaves p unchanged; if the path is
// required, check IsZero. Errors are *PathError.
func (p *Path) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return &PathError{Spelling: string(data), Text: expected("a string", data).Error()}
	}
	parsed, err := ParsePath(s)
	if err != nil {
		return err
	}
	*p = parsed
	return nil
}

// What is wrong with a misspelled path.
const (
	errNotAbsolute = "is neither an absolute path nor a file: URI"
	errHost        = "has an invalid host"
	errQuery       = "has a query; write ? as %3F in a file: URI"
	errFragment    = "has a fragment; write # as %23 in a file: URI"
)

// OSName returns the name that the protocol uses for an operating system, given a value of
// runtime.GOOS.
func OSName(goos string) string {
	if goos == "darwin" {
		return "macos"
	}
	return goos
}

func parsePath(goos, s string) (Path, error) {
	if isAbsolute(goos, s) {
		if strings.IndexByte(s, 0) >= 0 {
			return Path{}, &PathError{Spelling: s, Text: (&ForeignPathError{s, OSName(goos)}).Error()}
		}
		return plainPath(goos, s), nil
	}
	u, text := parseFileURI(s)
	if text != "" {
		return Path{}, &PathError{Spelling: s, Text: quote(s) + " " + text}
	}
	p := Path{wire: u.String(), uri: true}
	raw, isFallback := u.fallback()
	decoded := unescape(strings.Join(u.segments, "/"))
	switch {
	case isFallback:
		// Only a path that has no ordinary spelling may use this form, so that
		// no path has two names. One with a NUL names nothing on any host.
		if strings.IndexByte(raw, 0) < 0 && isAbsolute(goos, raw) && uriPath(goos, raw).wire == p.wire {
			p.osPath = raw
		}
	case strings.IndexByte(u.host+decoded, 0) >= 0:
		return Path{}, &PathError{Spelling: s, Text: (&ForeignPathError{p.wire, OSName(goos)}).Error()}
	case goos == "windows":
		p.osPath = u.windows(decoded)
	case u.host == "" && !u.drive():
		p.osPath = path.Clean("/" + decoded)
	}
	return p, nil
}

func plainPath(goos, osPath string) Path {
	if !utf8.ValidString(osPath) || strings.IndexByte(osPath, 0) >= 0 {
		return uriPath(goos, osPath)
	}
	osPath = cleanOSPath(goos, osPath)
	return Path{wire: osPath, osPath: osPath}
}

func uriPath(goos, osPath string) Path {
	fallback := func() string { return fallbackPrefix + base64.RawURLEncoding.EncodeToString([]byte(osPath)) }
	if strings.IndexByte(osPath, 0) >= 0 {
		return Path{wire: fallback(), uri: true}
	}
	osPath = cleanOSPath(goos, osPath)
	p := Path{osPath: osPath, uri: true}
	switch {
	case goos == "windows":
		prefix, rest := "file:///", osPath
		if unc, ok := strings.CutPrefix(osPath, `\\`); ok {
			prefix, rest = "file://", unc
		}
		p.wire = prefix + escape(strings.ReplaceAll(rest, `\`, "/"), false)
		// Not everything a Windows path may start with fits into a URI.
		if again, err := parsePath(goos, p.wire); err != nil || again != p {
			p.wire = fallback()
		}
	case isDrive(osPath[1:min(3, len(osPath))]) && (len(osPath) == 3 || osPath[3] == '/'):
		// A directory really named "C:" would read as a drive; escaping the
		// letter keeps it a POSIX name for every parser of this protocol.
		p.wire = fmt.Sprintf("file:///%%%02X%s", osPath[1], escape(osPath[2:], false))
	default:
		p.wire = "file://" + escape(osPath, false)
	}
	return p
}

// isVerbatim reports whether a Windows path has a device or verbatim prefix
// (`\\?\`, `\\.\`), after which nothing is interpreted.
func isVerbatim(goos, s string) bool {
	return goos == "windows" && len(s) > 3 && isSlash(s[0]) && isSlash(s[1]) && (s[2] == '?' || s[2] == '.') && isSlash(s[3])
}

func isAbsolute(goos, s string) bool {
	if goos != "windows" {
		return strings.HasPrefix(s, "/")
	}
	if len(s) >= 3 && isDrive(s[:2]) && s[1] == ':' && isSlash(s[2]) {
		return true
	}
	return len(s) > 2 && isSlash(s[0]) && isSlash(s[1]) && !isSlash(s[2])
}

// cleanOSPath removes dot segments and doubled separators. Unlike path/filepath
// it works for any goos on any host, so that one test covers them all.
func cleanOSPath(goos, s string) string {
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
		return cleanOSPath("windows", "//"+u.host+"/"+decoded)
	case u.host == "" && u.drive():
		return cleanOSPath("windows", decoded)
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
	if !ok || scheme != "file" {
		return u, errNotAbsolute
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
			return "", errHost
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
	special := func(c byte) bool { return !rawInPath[c] || !spelled && (c == '%' || c == '\\') }
	first := 0
	for first < len(s) && !special(s[first]) {
		first++
	}
	if first == len(s) {
		return s
	}
	b := append(make([]byte, 0, len(s)+16), s[:first]...)
	for _, c := range []byte(s[first:]) {
		if special(c) {
			b = append(b, '%', upperHex[c>>4], upperHex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

// rawInPath has true for the bytes that may stand raw in a URI path, in one that is
// spelled already.
var rawInPath = func() (raw [256]bool) {
	for c := '!'; c < 0x7f; c++ {
		raw[c] = !strings.ContainsRune("\"#<>?`{}", c)
	}
	return raw
}()

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

// URIPathOn returns the Path, in URI form, of an absolute path of a machine with the operating
// system goos, named as in runtime.GOOS. The method OSPath may return an error for it.
func URIPathOn(goos, osPath string) Path { return uriPath(goos, osPath) }

// OSPathOn returns the path s, in either form, in the syntax of the operating system goos, or
// "" if it cannot exist on that system.
func OSPathOn(goos, s string) string {
	p, err := parsePath(goos, s)
	if err != nil {
		return ""
	}
	return p.osPath
}
