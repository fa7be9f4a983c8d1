package main

import (
	"os"
	"runtime"
)

// shareProcessors leaves half of the processors to the processes that the server
// runs, unless the environment says how many it may have. With all of them the
// runtime wakes threads and spins for work that one thread has done before they
// look: on two processors bulk output takes half as much time again, and a small
// request twice as long. System calls that block do not count against the half.
func shareProcessors() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS((runtime.GOMAXPROCS(0) + 1) / 2)
	}
}
