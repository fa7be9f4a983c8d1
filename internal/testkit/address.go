package testkit

import (
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
)

// given has the addresses that FreeAddress has looked at.
var given sync.Map

// FreeAddress returns an address of loopback at which nothing listens, for a program that
// cannot choose its port itself, or starts again. No other call returns it, and its port is
// below those that the kernel assigns to programs that ask for any port, so it stays free
// until the program listens.
func FreeAddress(t testing.TB) string {
	t.Helper()
	const first, last = 10_000, 32_767
	for range 100 {
		address := fmt.Sprint("127.0.0.1:", first+rand.IntN(last-first+1))
		if _, again := given.LoadOrStore(address, true); again {
			continue
		}
		if isFree(address) {
			return address
		}
	}
	t.Fatal("no port is free")
	return ""
}

// isFree reports whether a listener can have an address. A child forked while this program
// listens there would listen, too, until the child executes its own program, so isFree
// prevents forks meanwhile.
func isFree(address string) bool {
	if runtime.GOOS == "linux" { // on others, package net locks it to make the socket
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return false
	}
	_ = l.Close()
	return true
}
