//go:build core

package main

import (
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"execserver/server"
)

// recordFlags are none: this build records nothing.
type recordFlags struct{ dir string }

func (*recordFlags) define(*pflag.FlagSet)         {}
func (*recordFlags) complete(*pflag.FlagSet) error { return nil }

func (*recordFlags) open(*slog.Logger) (server.Recorder, func(), error) { return nil, func() {}, nil }

func recordingCommands() []*cobra.Command { return nil }
