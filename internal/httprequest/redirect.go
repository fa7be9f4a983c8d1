package httprequest

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
)

// follow returns the request to which a response to last redirects, or nil if the
// response is final.
func (r *Request) follow(last *http.Request, response *http.Response) (*http.Request, error) {
	locations := response.Header["Location"]
	if !isRedirect(response.StatusCode) || len(locations) == 0 {
		return nil, nil
	}
	target, err := parseURL(locations[0], last.URL)
	if scheme, ok := err.(*schemeError); ok {
		return nil, fmt.Errorf("redirect target uses %w", scheme)
	}
	if err != nil {
		return nil, nil // it redirects nowhere, but is a response
	}
	target.User = nil // the server must not choose the user
	next := &http.Request{
		Method: last.Method, URL: target, Host: last.Host, Proto: last.Proto, ProtoMajor: last.ProtoMajor, ProtoMinor: last.ProtoMinor,
		Header: maps.Clone(last.Header),
	}
	if dropsBody(response.StatusCode, last.Method) {
		next.Method = http.MethodGet
		remove(next.Header, "content-type", "content-encoding")
	} else if last.ContentLength > 0 {
		setBody(next, r.Body)
	}
	if target.Scheme != last.URL.Scheme || target.Host != last.URL.Host {
		next.Host = ""
		remove(next.Header, "authorization", "cookie", "cookie2", "proxy-authorization", "www-authenticate")
		remove(next.Header, r.secretNames()...)
	}
	if referer := referer(last.URL, target); referer == "" {
		remove(next.Header, "referer")
	} else {
		next.Header["referer"] = []string{referer}
	}
	return next, nil
}

// secretNames returns the names of the headers whose values come from this process's
// environment. The client meant such a variable for the origin that it asked, not for one
// that this origin chooses.
func (r *Request) secretNames() (names []string) {
	for _, h := range r.Headers {
		if h.ValueEnvVar != nil {
			names = append(names, strings.ToLower(h.Name))
		}
	}
	return names
}

func isRedirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// dropsBody reports whether the request after a redirect is a GET without a body.
func dropsBody(status int, method string) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound:
		return method == http.MethodPost
	case http.StatusSeeOther:
		return method != http.MethodHead
	}
	return false
}

// referer returns what target may learn about the previous URL: nothing when the previous
// request was encrypted and target is not, and only the origin when target has another
// one.
func referer(last, target *url.URL) string {
	if last.Scheme == "https" && target.Scheme == "http" {
		return ""
	}
	if last.Scheme != target.Scheme || last.Host != target.Host {
		return last.Scheme + "://" + last.Host + "/"
	}
	return last.String()
}

func remove(header http.Header, names ...string) {
	for _, name := range names {
		delete(header, name)
	}
}
