package main

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/pflag"

	"execserver/server"
)

// doors are the flags about who may connect, besides authentication.
type doors struct {
	loopbackPeers string
	allowHosts    []string
	allowOrigins  []string
}

func (d *doors) define(f *pflag.FlagSet) {
	f.StringVar(&d.loopbackPeers, "loopback-peers", "own", "`users` who may connect over loopback without authentication: own (the server's own, and root) or any")
	f.StringArrayVar(&d.allowHosts, "allow-host", nil, "`name` by which clients may call this machine over loopback, besides localhost and addresses; may be repeated")
	f.StringArrayVar(&d.allowOrigins, "allow-origin", nil, "`origin` of a web page that may connect, such as https://example.com; may be repeated")
}

// complete checks what the flag library cannot.
func (d *doors) complete() error {
	if d.loopbackPeers != "own" && d.loopbackPeers != "any" {
		return invalidValue("loopback-peers", d.loopbackPeers, "expected own or any")
	}
	for _, name := range d.allowHosts {
		if name == "" || strings.ContainsAny(name, ":/*[] ") {
			return invalidValue("allow-host", name, "expected a name without a port")
		}
	}
	for _, origin := range d.allowOrigins {
		if err := checkOrigin(origin); err != nil {
			return err
		}
	}
	return nil
}

// checkOrigin refuses what no browser sends: it would let nobody in.
func checkOrigin(origin string) error {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || origin != fmt.Sprintf("%s://%s", u.Scheme, u.Host) || strings.ContainsAny(origin, "*@") {
		return invalidValue("allow-origin", origin, "expected scheme://host or scheme://host:port, as the page's browser sends it")
	}
	return nil
}

func (d *doors) apply(o *server.Options) {
	o.AnyLoopbackPeer = d.loopbackPeers == "any"
	o.AllowHosts, o.AllowOrigins = d.allowHosts, d.allowOrigins
}
