package serve

import (
	"os"
)

// catchIgnored does nothing: processes on Windows inherit no signal dispositions.
func catchIgnored() {}

// notifyDrain does nothing: Windows has no such signal.
func notifyDrain(chan<- os.Signal) {}
