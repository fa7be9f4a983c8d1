//go:build core

package main

import (
	"github.com/spf13/pflag"

	"execserver/server"
)

// metricsFlags are none: this build has no metrics.
type metricsFlags struct{}

func (*metricsFlags) define(*pflag.FlagSet) {}
func (*metricsFlags) apply(*server.Options) {}

func (*metricsFlags) openMetrics(*options, listenAddress, *server.Authenticator) (metricsListeners, error) {
	return metricsListeners{}, nil
}

// metricsListeners are none.
type metricsListeners struct{}

func (metricsListeners) serve(*server.Server, chan<- error) {}
