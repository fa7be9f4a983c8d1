// Command exec-server runs commands, terminals and file operations on this machine for an
// agent. It serves the exec-server protocol over WebSocket, a unix socket or stdio. See
// README.md.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
)

// version is set by the release build.
var version = ""

func main() {
	becomeHelper()
	go func() { os.Exit(run(os.Args[1:])) }()
	runFirstThread()
}

// run executes the command line and returns the exit code: 0, 1 for a failure, 2 for an
// invalid command line, 128 and its number for a signal, and for the subcommand run that of
// its command.
func run(args []string) int {
	command := newCommand()
	command.SetArgs(args)
	err := command.Execute()
	if err == nil {
		return 0
	}
	if usage, ok := errors.AsType[*usageError](err); ok {
		fmt.Fprint(os.Stderr, usage.text())
		return 2
	}
	if code, ok := errors.AsType[exitCode](err); ok {
		return int(code)
	}
	fmt.Fprintf(os.Stderr, "Error: %s\n", printableLines(err.Error()))
	if failure, ok := errors.AsType[*runFailure](err); ok {
		return failure.code
	}
	return 1
}

// buildVersion returns the version for clients and --version.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "0.0.0-dev"
}
