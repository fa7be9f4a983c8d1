//go:build unix

package serve

import (
	"bufio"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// catchIgnored catches and drops the signals that this program was started with ignored,
// as by nohup. So its processes have default dispositions: children inherit an ignored
// signal, but not a caught one. SIGTTIN and SIGTTOU stay as they are, because a program
// that catches those cannot write to a terminal in the background.
func catchIgnored() {
	ignored, last := ignoredSignals(), syscall.Signal(31)
	if runtime.GOOS == "linux" { // elsewhere the runtime knows no others
		last = 64
	}
	for number := syscall.Signal(1); number <= last; number++ {
		inherited := ignored>>(number-1)&1 != 0 || signal.Ignored(number)
		if inherited && number != syscall.SIGTTIN && number != syscall.SIGTTOU {
			signal.Notify(make(chan os.Signal, 1), number)
		}
	}
}

// ignoredSignals returns the set of signals that this program ignores. SIGHUP is the
// lowest bit. The runtime does not know all signals that were ignored when it started.
func ignoredSignals() (set uint64) {
	status, err := os.Open("/proc/self/status") // on Linux
	if err != nil {
		return 0
	}
	defer status.Close()
	for lines := bufio.NewScanner(status); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "SigIgn:"); ok {
			set, _ = strconv.ParseUint(strings.TrimSpace(value), 16, 64) // 0 if it cannot be read
		}
	}
	return set
}

// notifyDrain sends the signals that drain the server to a channel.
func notifyDrain(to chan<- os.Signal) { signal.Notify(to, syscall.SIGUSR2) }
