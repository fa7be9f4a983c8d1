package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/pflag"

	"execserver/internal/auth"
	"execserver/internal/cli"
	"execserver/internal/cli/serve"
	"execserver/internal/peer"
	"execserver/internal/sys"
)

// natsFlags say how to sign in to NATS.
type natsFlags struct {
	tokenFile, creds, nkey, ca, cert, key string
	serverUser                            string
}

func (o *natsFlags) define(f *pflag.FlagSet) {
	f.StringVar(&o.creds, "fleet-creds", "", "sign in with the credentials of NATS in this `file`, at NATS servers that a gateway does not run itself")
	f.StringVar(&o.nkey, "fleet-nkey", "", "sign in with the nkey of NATS whose seed is in this `file`")
	f.StringVar(&o.ca, "fleet-ca", "", "trust the authorities in this PEM `file` for tls:// and wss://, instead of the system's")
	f.StringVar(&o.cert, "fleet-cert", "", "present the certificate in this PEM `file`")
	f.StringVar(&o.key, "fleet-key", "", "read the private key of --fleet-cert from this PEM `file`")
	cli.DefineServerUser(f, &o.serverUser)
}

// files returns the files that only this program may read.
func (o *natsFlags) files() []string { return serve.Given(nil, o.tokenFile, o.creds, o.nkey, o.key) }

// options returns the options of a connection to the NATS servers at urls.
func (o *natsFlags) options(urls []string, log *slog.Logger) ([]nats.Option, error) {
	opts := []nats.Option{
		nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(reconnectDelay),
		nats.PingInterval(10 * time.Second), nats.MaxPingsOutstanding(2),
		nats.FlusherTimeout(5 * time.Second),
		nats.Timeout(5 * time.Second),
		nats.IgnoreAuthErrorAbort(), // the token may be in the file of the gateway soon
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("the connection to the fleet was lost; connecting again", "error", err)
			}
		}),
		nats.ReconnectHandler(func(c *nats.Conn) { log.Warn("connected to the fleet again", "at", c.ConnectedUrlRedacted()) }),
		nats.ErrorHandler(reportOnce(log)),
	}
	if slices.ContainsFunc(urls, o.inClear) {
		opts = append(opts, nats.SetCustomDialer(&checkingDialer{serverUser: o.serverUser, log: log}))
	}
	if o.creds != "" {
		if _, err := auth.ReadFile(o.creds, auth.SecretFile); err != nil {
			return nil, fmt.Errorf("read the credentials of NATS in %s: %w", o.creds, sys.WrapError(err))
		}
		opts = append(opts, nats.UserCredentials(o.creds))
	}
	if o.nkey != "" {
		if _, err := auth.ReadFile(o.nkey, auth.SecretFile); err != nil {
			return nil, fmt.Errorf("read the nkey in %s: %w", o.nkey, sys.WrapError(err))
		}
		option, err := nats.NkeyOptionFromSeed(o.nkey)
		if err != nil {
			return nil, fmt.Errorf("read the nkey in %s: %w", o.nkey, err)
		}
		opts = append(opts, option)
	}
	config, err := o.tls()
	if config != nil {
		opts = append(opts, nats.Secure(config))
	}
	return opts, err
}

// inClear reports whether a connection to a URL of NATS has no TLS.
func (o *natsFlags) inClear(text string) bool {
	scheme, _, _ := strings.Cut(strings.ToLower(text), "://")
	return scheme == "ws" || scheme == "nats" && o.ca == "" // with it, NATS demands TLS
}

// dialTimeout bounds a connection to one NATS server, until that has accepted it.
const dialTimeout = 5 * time.Second

// checkingDialer is a nats.CustomDialer that checks who has accepted a connection, because
// the listener gets the token, and may run commands here.
type checkingDialer struct {
	serverUser string
	log        *slog.Logger

	mu       sync.Mutex
	reported string
}

// Dial implements nats.CustomDialer.
func (d *checkingDialer) Dial(network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	conn, err := peer.DialServer(ctx, new(net.Dialer), network, address, d.serverUser)
	if err != nil && !errors.As(err, new(*net.OpError)) {
		text := err.Error()
		if other, ok := errors.AsType[*peer.ServerError](err); ok {
			text += "; if that is the fleet, say --server-user " + other.User
		}
		d.tell(text)
	}
	return conn, err
}

// tell logs why a connection is not used, unless it did so the last time: NATS does not say.
func (d *checkingDialer) tell(why string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if why != d.reported {
		d.reported = why
		d.log.Error("the fleet is not joined", "reason", why)
	}
}

// reportOnce returns a handler that logs an error of NATS unless it was the last one: while a
// fleet refuses a machine, the same comes at each attempt.
func reportOnce(log *slog.Logger) nats.ErrHandler {
	var mu sync.Mutex
	reported := ""
	return func(_ *nats.Conn, _ *nats.Subscription, err error) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err.Error() == reported:
			return
		case errors.Is(err, nats.ErrAuthorization):
			log.Error("the fleet accepts the name or the token no longer; trying again")
		default:
			log.Warn("NATS reports an error", "error", err)
		}
		reported = err.Error()
	}
}

// reconnectDelay is the pause after all servers of a fleet were tried in vain. It grows, and
// differs between machines, so that a gateway that starts again is not flooded.
func reconnectDelay(attempts int) time.Duration {
	most := 100 * time.Millisecond << min(attempts, 6) // up to 6.4 seconds
	return most/2 + rand.N(most/2)
}

// tls returns the configuration of TLS, or nil for that of NATS.
func (o *natsFlags) tls() (*tls.Config, error) {
	if o.ca == "" && o.cert == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.ca != "" {
		text, err := os.ReadFile(o.ca)
		if err != nil {
			return nil, fmt.Errorf("read TLS file %s: %w", o.ca, sys.WrapError(err))
		}
		if config.RootCAs, err = authorities(o.ca, text); err != nil {
			return nil, err
		}
	}
	if o.cert != "" {
		if _, err := auth.ReadFile(o.key, auth.SecretFile); err != nil {
			return nil, fmt.Errorf("read TLS file %s: %w", o.key, sys.WrapError(err))
		}
		pair, err := tls.LoadX509KeyPair(o.cert, o.key)
		if err != nil {
			return nil, fmt.Errorf("load TLS certificate %s with key %s: %w", o.cert, o.key, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// authorities returns those in the text of a PEM file.
func authorities(file string, text []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("TLS file %s has no certificate", file)
	}
	return pool, nil
}

// check refuses flags that contradict each other.
func (o *natsFlags) check(urls []string) error {
	for _, text := range urls {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
			return errors.New("expected the fleet at nats://HOST:PORT, tls://HOST:PORT, ws://HOST:PORT or wss://HOST:PORT")
		}
		if u.User != nil {
			return errors.New("the URL of a fleet must not have a password, which every process here could read; use a file")
		}
	}
	switch {
	case len(serve.Given(nil, o.tokenFile, o.creds, o.nkey)) > 1:
		return errors.New("--token-file, --fleet-creds and --fleet-nkey exclude each other")
	case (o.cert == "") != (o.key == ""):
		return errors.New("--fleet-cert and --fleet-key go together")
	}
	return nil
}
