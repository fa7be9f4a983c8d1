package serve

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/spf13/pflag"

	"execserver/internal/cli/usage"
	"execserver/internal/metrics"
	"execserver/server"
)

// metricsFlags are the flags about metrics.
type metricsFlags struct {
	serve  bool
	listen string
}

func (o *metricsFlags) define(f *pflag.FlagSet) {
	f.BoolVar(&o.serve, "metrics", false, "serve metrics in the format of Prometheus at /metrics of the WebSocket listener, to clients that may observe")
	f.StringVar(&o.listen, "metrics-listen", "", "serve them, and the probes, at this `address`: IP:PORT, where IP may be localhost; with the same TLS and authentication")
}

func (o *metricsFlags) apply(to *server.Options) {
	if o.serve {
		to.Metrics = metrics.Handler
	}
}

// metricsListeners are the listeners of --metrics-listen.
type metricsListeners []net.Listener

// openMetrics listens on --metrics-listen.
func (o *metricsFlags) openMetrics(all *Flags, main Address, authenticator *server.Authenticator) (metricsListeners, error) {
	if o.serve && main.Kind != ListenWebSocket {
		return nil, fmt.Errorf("--metrics requires a WebSocket listener, not %s; --metrics-listen serves metrics at an address of their own", main.Kind)
	}
	if o.listen == "" {
		return nil, nil
	}
	where, err := ParseListen("ws://"+o.listen, false)
	if err != nil {
		return nil, usage.InvalidValue("metrics-listen", o.listen, "expected IP:PORT or localhost:PORT")
	}
	err = where.CheckOpen(authenticator != server.Unauthenticated, all.InsecureNoAuth)
	if err != nil {
		return nil, fmt.Errorf("--metrics-listen: %w", err)
	}
	listeners, shown, err := where.open()
	if err != nil {
		return nil, fmt.Errorf("--metrics-listen: %w", err)
	}
	scheme := "http"
	if all.tls != nil {
		scheme = "https"
		for i, l := range listeners {
			listeners[i] = tls.NewListener(l, all.tls)
		}
	}
	all.Say(fmt.Sprintf("exec-server metrics on %s://%s/metrics", scheme, shown))
	return listeners, nil
}

// serve begins to serve metrics. ended receives the error when serving ends by itself.
func (l metricsListeners) serve(srv *server.Server, ended chan<- error) {
	for _, listener := range l {
		go func() {
			if err := srv.ServeMetrics(listener, metrics.Handler); !errors.Is(err, server.ErrClosed) {
				ended <- fmt.Errorf("serve metrics on %s: %w", listener.Addr(), err)
			}
		}()
	}
}
