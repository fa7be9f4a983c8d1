package main

import (
	"fmt"
	"os"
	"testing"
)

// maxIdleThreads is more than an idle server has on two processors, where it keeps about
// nine. The Go runtime makes some more on a busy machine, because calls take longer.
const maxIdleThreads = 16

// TestIdleThreads counts the threads of a server that has not started a command, and of its
// supervisor.
func TestIdleThreads(t *testing.T) {
	t.Setenv("GOMAXPROCS", "2")
	p := startListening(t, nil)
	p.connect()
	for _, pid := range []int{p.server(), p.command.Process.Pid} {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			t.Fatal(err)
		}
		if len(threads) > maxIdleThreads {
			t.Errorf("process %d has %d threads, want at most %d", pid, len(threads), maxIdleThreads)
		}
	}
}
