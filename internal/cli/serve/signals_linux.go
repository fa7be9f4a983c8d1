package serve

import (
	"bufio"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

// catchIgnored catches and drops the signals that this program was started with ignored,
// as by nohup. So its processes have default dispositions: children inherit an ignored
// signal, but not a caught one. SIGTTIN and SIGTTOU stay as they are, because a program
// that catches those cannot write to a terminal in the background.
func catchIgnored() {
	ignored := ignoredSignals()
	for number := syscall.Signal(1); number <= 64; number++ {
		inherited := ignored>>(number-1)&1 != 0 || signal.Ignored(number)
		if inherited && number != syscall.SIGTTIN && number != syscall.SIGTTOU {
			signal.Notify(make(chan os.Signal, 1), number)
		}
	}
}

// ignoredSignals returns the set of signals that this program ignores. SIGHUP is the
// lowest bit. The runtime does not know all signals that were ignored when it started.
func ignoredSignals() (set uint64) {
	status, err := os.Open("/proc/self/status")
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
