package process_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"execserver/internal/process"
	"execserver/internal/testkit"
	"execserver/protocol"
)

// TestTerminalGivenUpAndOpenedAgain: while a program has closed its terminal, no other
// process holds it. What the program writes after opening the terminal again arrives.
func TestTerminalGivenUpAndOpenedAgain(t *testing.T) {
	p := onTerminal(t, "stty -opost; i=0; while [ $i -lt 300 ]; do exec 0<&- 1>&- 2>&-; exec 0<>/dev/tty 1>&0 2>&0; i=$((i+1)); echo $i; done; exit 4", process.DefaultSize)
	var want strings.Builder
	for i := range 300 {
		fmt.Fprintln(&want, i+1)
	}
	if s := follow(t, p); s.All != want.String() || s.Exit.ExitCode != 4 {
		t.Errorf("exit code %d, output %q", s.Exit.ExitCode, s.All)
	}
}

// TestEndHangsUp: when the leader exits, its terminal is hung up for the processes that it
// leaves behind.
func TestEndHangsUp(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hung up")
	p := onTerminal(t, fmt.Sprintf("(trap 'echo >\"%s\"; exit' HUP; echo ready; while :; do sleep 0.02; done) & read line", file), process.DefaultSize)
	hasOutput(t, p, "ready")
	if status := write(t, p, "\n"); status != protocol.WriteAccepted {
		t.Fatal(status)
	}
	follow(t, p)
	testkit.WaitFor(t, testkit.Patience, func() error {
		_, err := os.Stat(file)
		return err
	})
}
