package serve

import "os"

// notifyDrain does nothing: Windows has no such signal.
func notifyDrain(chan<- os.Signal) {}
