package server

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// checkHost refuses requests of a browser for a foreign page whose name now resolves to
// this machine (DNS rebinding). On loopback the Host must be one that always means
// loopback, or one of Options.AllowHosts.
func (s *Server) checkHost(r *http.Request) error {
	if local, _ := ends(r); !local.Addr().IsLoopback() {
		return nil
	}
	name := r.Host
	if host, port, err := net.SplitHostPort(name); err == nil && strings.Trim(port, "0123456789") == "" {
		name = host
	}
	name = strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]"), "."))
	if name == "localhost" {
		return nil
	}
	// Clients connect to 0.0.0.0 when the server reports that address.
	if address, err := netip.ParseAddr(name); err == nil && (address.Unmap().IsLoopback() || address.IsUnspecified()) {
		return nil
	}
	if slices.ContainsFunc(s.opts.AllowHosts, func(allowed string) bool { return strings.EqualFold(allowed, name) }) {
		return nil
	}
	return fmt.Errorf("the Host %.100q is not this machine's loopback; connect to 127.0.0.1 or localhost, or have the operator allow the host that "+
		"a proxy on this machine serves", r.Host)
}

// fromOwnPage reports whether a request comes from a page of the same scheme, host and port.
func fromOwnPage(r *http.Request) bool {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	origins := r.Header["Origin"]
	return len(origins) == 1 && strings.EqualFold(origins[0], scheme+"://"+r.Host)
}

// fetchedElsewhere reports whether a browser says that a page of another origin asked for
// this, in a request without an Origin. Browsers send such requests for images and frames.
func fetchedElsewhere(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return len(r.Header["Origin"]) == 0 && site != "" && site != "same-origin" && site != "none"
}

// navigates reports whether a browser opens a document, as when a person follows a link.
func navigates(r *http.Request) bool {
	return r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// checkOrigin refuses pages. Only browsers send an Origin, for a page that may be
// anybody's.
func (s *Server) checkOrigin(r *http.Request) bool {
	origins, ok := r.Header["Origin"]
	return !ok || len(origins) == 1 && slices.Contains(s.opts.AllowOrigins, origins[0])
}
