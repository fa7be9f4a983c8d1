package httprequest

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"
)

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
