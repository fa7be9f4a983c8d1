package testkit

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// given has the addresses that FreeAddress has looked at.
var given sync.Map

// FreeAddress returns an address of loopback at which nothing listens, for a program that
// cannot choose its port itself, or starts again. No other call returns it, and its port is
// below those that the kernel gives to whoever asks for any: it stays free until the program
// listens.
func FreeAddress(t testing.TB) string {
	t.Helper()
	const first, last = 10_000, 32_767
	for range 100 {
		address := fmt.Sprint("127.0.0.1:", first+rand.IntN(last-first+1))
		if _, again := given.LoadOrStore(address, true); again {
			continue
		}
		if l, err := net.Listen("tcp", address); err == nil {
			_ = l.Close()
			return address
		}
	}
	t.Fatal("no port is free")
	return ""
}
