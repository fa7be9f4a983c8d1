// Command exec-server gives an agent its hands on this machine: it serves the
// exec-server protocol over WebSocket, a unix socket or stdio. See README.md.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the release build.
var version = ""

func main() {
	inheritNothing()
	os.Exit(run(os.Args[1:]))
}

// run executes the command line and returns the exit code: 0, 1 for a failure,
// 2 for a command line that cannot be understood.
func run(args []string) int {
	command := newCommand()
	command.SetArgs(args)
	err := command.Execute()
	var usage *usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "error: %s\n\n%s", err, usage.command.UsageString())
		return 2
	}
	fmt.Fprintf(os.Stderr, "Error: %s\n", err)
	return 1
}

// usageError says that the command line cannot be understood.
type usageError struct {
	err     error
	command *cobra.Command
}

func (e *usageError) Error() string { return e.err.Error() }

// buildVersion is the version that clients and --version are told.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "0.0.0-dev"
}
