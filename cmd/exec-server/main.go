// Command exec-server gives an agent its hands on this machine: it serves the
// exec-server protocol over WebSocket, a unix socket or stdio. See README.md.
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
	clearLeft()
	go func() { os.Exit(run(os.Args[1:])) }()
	runFirstThread()
}

// run executes the command line and returns the exit code: 0, 1 for a failure,
// 2 for a command line that cannot be understood, and of the subcommand run that
// of its command.
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
	fmt.Fprintf(os.Stderr, "Error: %s\n", err)
	if failure, ok := errors.AsType[*runFailure](err); ok {
		return failure.code
	}
	return 1
}

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
