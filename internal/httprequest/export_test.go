package httprequest

import (
	"net/http"
	"net/url"
)

// ParseURL is parseURL, for the fuzz target.
func ParseURL(text string, base *url.URL) (*url.URL, error) { return parseURL(text, base) }

// Build is Request.build, for the fuzz target.
func Build(r *Request) (*http.Request, error) { return r.build() }
