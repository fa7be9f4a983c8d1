// Command exec-server runs commands, terminals and file operations on this machine for an
// agent. It serves the exec-server protocol over WebSocket, a unix socket or stdio. See
// README.md.
package main

import (
	"errors"
	"os"
	"runtime"

	"execserver/internal/cli"
	"execserver/internal/cli/serve"
)

// version is set by the release build.
var version = ""

// The first thread starts no process, and reaps orphans: see ownership.ReapOrphans.
func init() { runtime.LockOSThread() }

func main() { serve.Main(func() int { return run(os.Args[1:]) }) }

// run executes the command line and returns the exit code: 0, 1 for a failure, 2 for an
// invalid command line, 128 and its number for a signal, and for the subcommand run that of
// its command.
func run(args []string) int {
	command := newCommand()
	command.SetArgs(namedSignals(args))
	err := command.Execute()
	code := cli.Report(err)
	if failure, ok := errors.AsType[*runFailure](err); ok {
		return failure.code
	}
	return code
}

// buildVersion returns the version for clients and --version.
func buildVersion() string { return cli.Version(version) }
