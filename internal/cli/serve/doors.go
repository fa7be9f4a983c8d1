package serve

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/pflag"

	"execserver/internal/cli/usage"
	"execserver/server"
)

// doors are the flags that, besides authentication, decide who may connect.
type doors struct {
	loopbackPeers string
	allowHosts    []string
	allowOrigins  []string
}

func (d *doors) Define(f *pflag.FlagSet) {
	f.StringVar(&d.loopbackPeers, "loopback-peers", "own", "`users` who may connect over loopback without authentication: own (the server's own user and root) or any (every user of this machine)")
	f.StringArrayVar(&d.allowHosts, "allow-host", nil, "let clients on loopback address this machine by this `name`, besides localhost and addresses; may be repeated")
	f.StringArrayVar(&d.allowOrigins, "allow-origin", nil, "let web pages of this `origin` connect, such as https://example.com; may be repeated")
}

// Complete checks what the flag library cannot.
func (d *doors) Complete() error {
	if d.loopbackPeers != "own" && d.loopbackPeers != "any" {
		return usage.InvalidValue("loopback-peers", d.loopbackPeers, "expected own or any")
	}
	for _, name := range d.allowHosts {
		if name == "" || strings.ContainsAny(name, ":/*[] ") {
			return usage.InvalidValue("allow-host", name, "expected a name without a port")
		}
	}
	for _, origin := range d.allowOrigins {
		if err := checkOrigin(origin); err != nil {
			return err
		}
	}
	return nil
}

// checkOrigin refuses an origin that no browser sends, because it would admit nobody.
func checkOrigin(origin string) error {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || origin != fmt.Sprintf("%s://%s", u.Scheme, u.Host) || strings.ContainsAny(origin, "*@") {
		return usage.InvalidValue("allow-origin", origin, "expected scheme://host or scheme://host:port, as the page's browser sends it")
	}
	return nil
}

func (d *doors) Apply(o *server.Options) {
	o.AnyLoopbackPeer = d.loopbackPeers == "any"
	o.AllowHosts, o.AllowOrigins = d.allowHosts, d.allowOrigins
}
