//go:build core

package main

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"execserver/server"
)

// fleetFlags are none: this build joins no fleet.
type fleetFlags struct{}

func (*fleetFlags) joins() bool     { return false }
func (*fleetFlags) files() []string { return nil }

func (*fleetFlags) join(*server.Server, *slog.Logger, *options, chan<- os.Signal, chan<- error) (leave func(), err error) {
	return func() {}, nil
}

func fleetCommands() []*cobra.Command { return nil }
