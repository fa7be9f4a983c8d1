package httprequest

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
)

// proxies are the proxy settings of the environment. Unlike the function of net/http they
// also apply to targets on this machine.
type proxies struct {
	http, https setting
	exempt      []exemption
	all         bool // no request uses a proxy
}

// setting is a proxy (nil for none), or the reason why it cannot be used.
type setting struct {
	proxy *url.URL
	err   error
}

// exemption is a target that is reached without a proxy.
type exemption struct {
	network netip.Prefix // or
	domain  string       // with its subdomains
	port    string       // "" for any
}

func proxiesFromEnvironment() proxies {
	plain := []string{"HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"}
	if os.Getenv("REQUEST_METHOD") != "" {
		plain = plain[1:] // in a CGI program a header of the request sets it
	}
	p := proxies{
		http:  settingFrom(plain...),
		https: settingFrom("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"),
	}
	_, exempt := firstOf("NO_PROXY", "no_proxy")
	for entry := range strings.SplitSeq(exempt, ",") {
		entry = strings.ToLower(strings.TrimSpace(entry))
		switch entry {
		case "":
		case "*":
			p.all = true
		default:
			p.exempt = append(p.exempt, parseExemption(entry))
		}
	}
	return p
}

// at reports whether one of the proxies has this address, a host and a port.
func (p *proxies) at(address string) bool {
	ports := map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}
	for _, s := range []setting{p.http, p.https} {
		if s.proxy == nil {
			continue
		}
		if strings.EqualFold(address, net.JoinHostPort(s.proxy.Hostname(), cmp.Or(s.proxy.Port(), ports[s.proxy.Scheme]))) {
			return true
		}
	}
	return false
}

// firstOf returns the first variable of the environment that is not empty.
func firstOf(names ...string) (name, value string) {
	for _, name := range names {
		if value := os.Getenv(name); value != "" {
			return name, value
		}
	}
	return "", ""
}

// settingFrom parses the first of some variables. Its errors do not contain the value,
// which may hold a password.
func settingFrom(names ...string) setting {
	name, value := firstOf(names...)
	if value == "" {
		return setting{}
	}
	if !strings.Contains(value, "://") {
		value = "http://" + value
	}
	u, err := url.Parse(value)
	if err != nil || u.Hostname() == "" {
		return setting{err: fmt.Errorf("the value of %s is not the URL of a proxy", name)}
	}
	switch u.Scheme {
	case "http", "https", "socks5", "socks5h":
		return setting{proxy: u}
	}
	return setting{err: fmt.Errorf("%s names a proxy of the scheme %q; http, https, socks5 and socks5h are known", name, u.Scheme)}
}

func parseExemption(entry string) exemption {
	if network, err := netip.ParsePrefix(entry); err == nil {
		return exemption{network: network.Masked()}
	}
	host, port := entry, ""
	if _, err := netip.ParseAddr(entry); err != nil {
		if h, p, err := net.SplitHostPort(entry); err == nil {
			host, port = h, p
		}
	}
	if address, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return exemption{network: netip.PrefixFrom(address, address.BitLen()), port: port}
	}
	return exemption{domain: strings.TrimPrefix(strings.TrimPrefix(host, "*"), "."), port: port}
}

// of returns the proxy for a target, or nil for none.
func (p *proxies) of(target *url.URL) (*url.URL, error) {
	choice := p.http
	if target.Scheme == "https" {
		choice = p.https
	}
	if choice == (setting{}) || p.all {
		return nil, nil
	}
	for _, e := range p.exempt {
		if e.matches(target) {
			return nil, nil
		}
	}
	return choice.proxy, choice.err
}

func (e exemption) matches(target *url.URL) bool {
	if port := target.Port(); e.port != "" && e.port != port && !(port == "" && e.port == defaultPort(target.Scheme)) {
		return false
	}
	host := target.Hostname()
	if address, err := netip.ParseAddr(host); err == nil {
		return e.network.Contains(address)
	}
	below, ok := strings.CutSuffix(host, e.domain)
	return ok && e.domain != "" && (below == "" || strings.HasSuffix(below, "."))
}

func defaultPort(scheme string) string {
	if scheme == "https" {
		return "443"
	}
	return "80"
}
