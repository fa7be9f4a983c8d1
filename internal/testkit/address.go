package testkit

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// FreeAddress returns an address of loopback at which nothing listens, for a program that
// cannot choose its port itself. It is none of those that the kernel gives to outgoing
// connections: one of them could take it before the program does.
func FreeAddress(t testing.TB) string {
	t.Helper()
	const first, last = 10_000, 32_767
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+rand.IntN(last-first+1)))
		if err != nil {
			continue
		}
		defer l.Close()
		return l.Addr().String()
	}
	t.Fatal("no port is free")
	return ""
}
