package main

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"execserver/server"
)

// doors are the flags that, besides authentication, decide who may connect.
type doors struct {
	loopbackPeers string
	allowHosts    []string
	allowOrigins  []string
	maxStartups   string
	penalties     string

	startups  server.Startups // of maxStartups
	perSource server.Penalties
}

func (d *doors) define(f *pflag.FlagSet) {
	f.StringVar(&d.loopbackPeers, "loopback-peers", "own", "`users` who may connect over loopback without authentication: own (the server's own user and root) or any (every user of this machine)")
	f.StringArrayVar(&d.allowHosts, "allow-host", nil, "let clients on loopback address this machine by this `name`, besides localhost and addresses; may be repeated")
	f.StringArrayVar(&d.allowOrigins, "allow-origin", nil, "let web pages of this `origin` connect, such as https://example.com; may be repeated")
	f.StringVar(&d.maxStartups, "max-startups", "256:30:1024", "limit connections before their upgrade by `start:rate:full`: from start on, each new one drops an old one with a probability of rate percent, which grows to 100 at full")
	f.StringVar(&d.penalties, "per-source-penalties", "authfail:100ms,grace-exceeded:1s,min:1s,max:5s", "penalty `times` of an address for failures: once they add up to min, the server delays its answer to bad credentials by the sum, at most by max; good credentials never wait")
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
	return errors.Join(d.parseStartups(), d.parsePenalties())
}

func (d *doors) parseStartups() error {
	s := &d.startups
	n, err := fmt.Sscanf(d.maxStartups+"\n", "%d:%d:%d\n", &s.Start, &s.Rate, &s.Full)
	if n != 3 || err != nil || s.Start < 1 || s.Full < s.Start || s.Rate < 0 || s.Rate > 100 {
		return invalidValue("max-startups", d.maxStartups, "expected start:rate:full, such as 64:30:256, with a rate of 0 to 100")
	}
	return nil
}

func (d *doors) parsePenalties() error {
	d.perSource = server.DefaultPenalties
	times := map[string]*time.Duration{
		"authfail": &d.perSource.AuthFail, "grace-exceeded": &d.perSource.GraceExceeded,
		"min": &d.perSource.Min, "max": &d.perSource.Max,
	}
	for field := range strings.SplitSeq(d.penalties, ",") {
		name, value, _ := strings.Cut(field, ":")
		length, err := time.ParseDuration(value)
		if times[name] == nil || err != nil || length <= 0 {
			return invalidValue("per-source-penalties", d.penalties, "expected authfail, grace-exceeded, min and max with a time each, such as authfail:100ms,max:5s")
		}
		*times[name] = length
	}
	return nil
}

// checkOrigin refuses an origin that no browser sends, because it would admit nobody.
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
	o.Startups, o.Penalties = d.startups, d.perSource
}
