package serve

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"execserver/internal/cli/usage"
	"execserver/internal/metrics"
	"execserver/server"
)

// metricsListeners are the listeners of --metrics-listen.
type metricsListeners []net.Listener

// openMetrics listens on --metrics-listen.
func (o *Flags) openMetrics(authenticator *server.Authenticator) (metricsListeners, error) {
	if o.metricsListen == "" {
		return nil, nil
	}
	where, err := ParseListen("ws://"+o.metricsListen, false)
	if err != nil {
		return nil, usage.InvalidValue("metrics-listen", o.metricsListen, "expected IP:PORT or localhost:PORT")
	}
	err = where.CheckOpen(authenticator != server.Unauthenticated, o.insecureNoAuth)
	if err != nil {
		return nil, fmt.Errorf("--metrics-listen: %w", err)
	}
	listeners, shown, err := where.open()
	if err != nil {
		return nil, fmt.Errorf("--metrics-listen: %w", err)
	}
	scheme := "http"
	if o.tls != nil {
		scheme = "https"
		for i, l := range listeners {
			listeners[i] = tls.NewListener(l, o.tls)
		}
	}
	o.Say(fmt.Sprintf("exec-server metrics on %s://%s/metrics", scheme, shown))
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
