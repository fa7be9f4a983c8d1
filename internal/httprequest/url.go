package httprequest

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"
)

// schemeError reports that this package does not support the scheme of a URL.
type schemeError struct{ scheme string }

func (e *schemeError) Error() string { return "the unsupported scheme " + e.scheme }

var errNoBase = errors.New("it has no scheme")

// parseURL parses text as browsers do (the URL standard of the WHATWG), for http and
// https alone. It ignores white space around the URL, turns backslashes into slashes,
// escapes what a URL must not hold, resolves dot segments, and drops the fragment. If
// base is not nil, a relative reference is relative to it. The error is a *schemeError
// for another scheme.
func parseURL(text string, base *url.URL) (*url.URL, error) {
	text = strings.TrimFunc(text, func(r rune) bool { return r <= ' ' })
	text = strings.NewReplacer("\t", "", "\n", "", "\r", "").Replace(text)
	text, _, _ = strings.Cut(text, "#")
	scheme, rest, absolute := cutScheme(text)
	switch {
	case absolute && scheme != "http" && scheme != "https":
		return nil, &schemeError{shorten(scheme)}
	case !absolute && base == nil:
		return nil, errNoBase
	case !absolute, base != nil && scheme == base.Scheme && countSlashes(rest) < 2:
		return parseRelative(rest, base)
	}
	return parseAuthority(scheme, rest)
}

// Origin returns the scheme and host to which a request with this URL goes, as
// scheme://host.
func Origin(text string) (string, error) {
	u, err := parseURL(text, nil)
	if err != nil {
		return "", err
	}
	return u.Scheme + "://" + u.Host, nil
}

// cutScheme splits a URL after its scheme, which it returns in lower case.
func cutScheme(text string) (scheme, rest string, ok bool) {
	for i := range len(text) {
		switch c := text[i]; {
		case isLetter(c):
		case i > 0 && (isDigit(c) || c == '+' || c == '-' || c == '.'):
		case i > 0 && c == ':':
			return strings.ToLower(text[:i]), text[i+1:], true
		default:
			return "", text, false
		}
	}
	return "", text, false
}

// parseRelative resolves a reference without a scheme.
func parseRelative(text string, base *url.URL) (*url.URL, error) {
	switch slashes := countSlashes(text); {
	case slashes >= 2:
		return parseAuthority(base.Scheme, text)
	case slashes == 1:
		return withPath(base.Scheme, base.Host, text), nil
	}
	directory := base.EscapedPath()
	path, query, hasQuery := strings.Cut(text, "?")
	if path != "" {
		return withPath(base.Scheme, base.Host, directory[:strings.LastIndexByte(directory, '/')+1]+text), nil
	}
	u := &url.URL{Scheme: base.Scheme, Host: base.Host, Path: base.Path, RawPath: base.RawPath}
	u.RawQuery = base.RawQuery
	if hasQuery {
		u.RawQuery = escapeQuery(query)
	}
	return u, nil
}

// parseAuthority parses what follows "http:" or "https:", with any number of slashes.
func parseAuthority(scheme, text string) (*url.URL, error) {
	text = text[countSlashes(text):]
	authority, path := text, ""
	if i := strings.IndexAny(text, `/\?`); i >= 0 {
		authority, path = text[:i], text[i:]
	}
	var user *url.Userinfo
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user = parseUser(authority[:i])
		authority = authority[i+1:]
	}
	host, err := parseHostPort(scheme, authority)
	if err != nil {
		return nil, err
	}
	u := withPath(scheme, host, path)
	u.User = user
	return u, nil
}

func parseUser(text string) *url.Userinfo {
	if text == "" || text == ":" {
		return nil
	}
	name, password, _ := strings.Cut(text, ":")
	return url.UserPassword(unescape(name), unescape(password))
}

// withPath builds a URL from its parts; path may include a query.
func withPath(scheme, host, path string) *url.URL {
	path, query, hasQuery := strings.Cut(path, "?")
	raw := cleanPath(path)
	return &url.URL{
		Scheme: scheme, Host: host,
		Path: unescape(raw), RawPath: raw,
		RawQuery: escapeQuery(query), ForceQuery: hasQuery && query == "",
	}
}

// cleanPath escapes a path and resolves its dot segments.
func cleanPath(path string) string {
	var segments []string
	all := strings.Split(strings.ReplaceAll(path, `\`, "/"), "/")
	if len(all) > 1 {
		all = all[1:] // the path begins with a slash
	}
	for i, segment := range all {
		last := i == len(all)-1
		switch dots := strings.ReplaceAll(strings.ToLower(segment), "%2e", "."); {
		case dots != "." && dots != "..":
			segments = append(segments, escapeSegment(segment))
			continue
		case dots == ".." && len(segments) > 0:
			segments = segments[:len(segments)-1]
		}
		if last {
			segments = append(segments, "")
		}
	}
	return "/" + strings.Join(segments, "/")
}

// escapeSegment escapes what net/url would not send unchanged. A percent sign that begins
// an escape stays.
func escapeSegment(s string) string {
	return escape(s, func(i int) bool {
		c := s[i]
		if c == '%' {
			return i+2 >= len(s) || !isHex(s[i+1]) || !isHex(s[i+2])
		}
		return strings.IndexByte("\"<>^`{|}", c) >= 0
	})
}

func escapeQuery(s string) string {
	return escape(s, func(i int) bool { return strings.IndexByte(`"<>'`, s[i]) >= 0 })
}

// escape escapes white space, controls, non-ASCII characters, and the bytes for which
// also returns true.
func escape(s string, also func(i int) bool) string {
	const hexDigits = "0123456789ABCDEF"
	var b []byte
	from := 0
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || also(i) {
			b = append(append(b, s[from:i]...), '%', hexDigits[c>>4], hexDigits[c&15])
			from = i + 1
		}
	}
	if b == nil {
		return s
	}
	return string(append(b, s[from:]...))
}

// unescape decodes escapes; a malformed one is literal.
func unescape(s string) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]) {
			b = append(b, fromHex(s[i+1])<<4|fromHex(s[i+2]))
			i += 2
			continue
		}
		b = append(b, s[i])
	}
	return string(b)
}

// countSlashes counts the slashes and backslashes that text begins with.
func countSlashes(text string) int {
	return len(text) - len(strings.TrimLeft(text, `/\`))
}

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }
func isDigit(c byte) bool  { return '0' <= c && c <= '9' }
func isHex(c byte) bool    { return isDigit(c) || 'a' <= c|0x20 && c|0x20 <= 'f' }

func fromHex(c byte) byte {
	if isDigit(c) {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

var (
	errEmptyHost = errors.New("it has no host")
	errPort      = errors.New("its port is not a number up to 65535")
	errIPv4      = errors.New("its host is not an IPv4 address")
	errIPv6      = errors.New("its host is not an IPv6 address")
	errDomain    = errors.New("its host is not a domain name")
)

// parseHostPort normalizes the host of a URL and removes the scheme's default port. It
// leaves names beyond ASCII for net/http to translate.
func parseHostPort(scheme, text string) (string, error) {
	end := strings.IndexByte(text, ':')
	if strings.HasPrefix(text, "[") {
		end = strings.IndexByte(text, ']')
		if end < 0 {
			return "", errIPv6
		}
		end++
		if rest := text[end:]; rest != "" && rest[0] != ':' {
			return "", errIPv6
		}
	}
	name, port := text, ""
	if end >= 0 && end < len(text) {
		name, port = text[:end], text[end+1:]
	}
	host, err := parseHost(name)
	if err != nil || port == "" {
		return host, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	switch {
	case err != nil:
		return "", errPort
	case n == 80 && scheme == "http", n == 443 && scheme == "https":
		return host, nil
	}
	return host + ":" + strconv.FormatUint(n, 10), nil
}

func parseHost(text string) (string, error) {
	if text == "" {
		return "", errEmptyHost
	}
	if strings.HasPrefix(text, "[") {
		address, err := netip.ParseAddr(strings.Trim(text, "[]"))
		if err != nil || !address.Is6() || address.Zone() != "" {
			return "", errIPv6
		}
		return "[" + address.String() + "]", nil
	}
	host := unescape(text)
	if !utf8.ValidString(host) {
		return "", errDomain
	}
	if strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r == 0x7f }) || strings.ContainsAny(host, "#%/:<>?@[\\]^`{|}") {
		return "", errDomain
	}
	host = strings.ToLower(host)
	if endsInNumber(host) {
		return parseIPv4(host)
	}
	return host, nil
}

// endsInNumber reports whether a host can only be an IPv4 address.
func endsInNumber(host string) bool {
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	last := labels[len(labels)-1]
	if last != "" && strings.Trim(last, "0123456789") == "" {
		return true
	}
	_, err := parseIPv4Number(last)
	return strings.HasPrefix(last, "0x") && err == nil
}

// parseIPv4 parses addresses of one to four numbers in decimal, octal or hexadecimal. The
// last number fills the remaining bytes.
func parseIPv4(host string) (string, error) {
	parts := strings.Split(strings.TrimSuffix(host, "."), ".")
	if len(parts) > 4 {
		return "", errIPv4
	}
	var address uint64
	for i, part := range parts {
		n, err := parseIPv4Number(part)
		bits := 8
		if i == len(parts)-1 {
			bits = 8 * (4 - i)
		}
		if err != nil || n>>bits != 0 {
			return "", errIPv4
		}
		address = address<<bits | n
	}
	return fmt.Sprintf("%d.%d.%d.%d", byte(address>>24), byte(address>>16), byte(address>>8), byte(address)), nil
}

func parseIPv4Number(s string) (uint64, error) {
	base := 10
	switch {
	case s == "0x":
		return 0, nil
	case strings.HasPrefix(s, "0x"):
		s, base = s[2:], 16
	case len(s) > 1 && s[0] == '0':
		base = 8
	}
	return strconv.ParseUint(s, base, 64)
}
