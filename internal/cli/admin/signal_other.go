//go:build !unix

package admin

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// parseSignal returns a signal by its name, with or without SIG.
func parseSignal(text string) (os.Signal, error) {
	signal, ok := map[string]os.Signal{
		"INT": os.Interrupt, "KILL": os.Kill, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT,
	}[strings.TrimPrefix(strings.ToUpper(text), "SIG")]
	if !ok {
		return nil, fmt.Errorf("there is no signal %q here; expected INT, KILL, TERM, HUP or QUIT", text)
	}
	return signal, nil
}
