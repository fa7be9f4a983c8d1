package show

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"
)

// PageLink prints a link to a path, with a query, that a server at a URL has answered.
func PageLink(out io.Writer, at, path, query string, life time.Duration) error {
	page, err := url.Parse(path)
	if err != nil || page.Host != "" || page.Scheme != "" {
		return fmt.Errorf("the server answers with %q, which is no path", path)
	}
	page.RawQuery = query
	link, err := pageURL(at, page)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, link); err != nil {
		return err
	}
	if _, shows := OnTerminal(out); shows {
		fmt.Fprintf(os.Stderr, "The link works once, within %s.\n", Spell(life.Round(time.Second)))
	}
	return nil
}

// pageURL returns the URL of a page of the server at a URL, for a browser on this machine.
func pageURL(at string, page *url.URL) (string, error) {
	u, err := url.Parse(at)
	if err != nil || u.Scheme != "ws" && u.Scheme != "wss" {
		return "", errors.New("the page needs the address of the server, and this way to it has none; use --url ws://HOST:PORT, " +
			"with exec-server forward to the port if it is not reachable")
	}
	u.Scheme = map[string]string{"ws": "http", "wss": "https"}[u.Scheme]
	u.User, u.RawQuery = nil, page.RawQuery
	u.Path, u.RawPath, u.Fragment = strings.TrimSuffix(u.Path, "/")+page.Path, "", page.Fragment // a proxy may serve it below a path
	return u.String(), nil
}
