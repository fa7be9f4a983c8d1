//go:build unix

package admin

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// parseSignal returns a signal by its name, with or without SIG, or by its number.
func parseSignal(text string) (os.Signal, error) {
	name := "SIG" + strings.TrimPrefix(strings.ToUpper(text), "SIG")
	if n, err := strconv.Atoi(text); err == nil {
		name = unix.SignalName(syscall.Signal(n))
	}
	if signal := unix.SignalNum(name); signal != 0 {
		return signal, nil
	}
	return nil, fmt.Errorf("there is no signal %q; expected a name such as HUP, or a number", text)
}
