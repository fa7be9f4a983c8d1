// Command exec-server runs commands, terminals and file operations on this machine for an
// agent. It serves the exec-server protocol over WebSocket, a unix socket or stdio. See
// README.md.
package main

import (
	"os"
	"runtime"

	"execserver/internal/cli"
	"execserver/internal/cli/root"
	"execserver/internal/cli/serve"
)

// version is set by the release build.
var version = ""

// The first thread starts no process, and reaps orphans: see ownership.ReapOrphans.
func init() { runtime.LockOSThread() }

func main() {
	serve.Main(func() int { return root.Run(cli.Version(version), os.Args[1:]) })
}
