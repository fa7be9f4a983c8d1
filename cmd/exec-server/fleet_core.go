//go:build core

package main

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"execserver/client"
	"execserver/server"
)

// fleetFlags are none: this build joins no fleet.
type fleetFlags struct{}

func (*fleetFlags) joins() bool     { return false }
func (*fleetFlags) machine() string { return "" }
func (*fleetFlags) files() []string { return nil }

func (*fleetFlags) join(*server.Server, *slog.Logger, *options, chan<- os.Signal, chan<- error) (leave func(), err error) {
	return func() {}, nil
}

func fleetCommands() []*cobra.Command { return nil }

// natsFlags are none: this build has no NATS.
type natsFlags struct{}

var natsFlagNames []string

// alsoNATS ends the list of the URLs for --url.
const alsoNATS = ""

func (*natsFlags) define(*pflag.FlagSet) {}
func (*natsFlags) given() [][2]string    { return nil }

var errNoNATS = errors.New("nats:// is not in this build, which was made with the tag core; use the URL of a gateway, or a build without the tag")

func (*where) checkNATS() error { return errNoNATS }

func (*where) dialNATS(context.Context, *client.Options) (*client.Environment, error) {
	return nil, errNoNATS
}

func adviseNATS(error) string { return "" }
