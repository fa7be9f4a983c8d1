//go:build core

package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"execserver/server"
)

// webFlags are none: this build has no page.
type webFlags struct{}

func (*webFlags) define(*pflag.FlagSet)     {}
func (*webFlags) check(listenAddress) error { return nil }
func (*webFlags) apply(*server.Options)     {}

func webCommands() []*cobra.Command { return nil }
