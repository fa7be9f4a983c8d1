package peer

import (
	"net"
	"testing"
)

// TestWaysAgree checks that both ways to find a socket find the same.
func TestWaysAgree(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Skip(err)
		}
		defer listener.Close()
		near, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer near.Close()
		far, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer far.Close()
		if _, err := far.Write([]byte("abc")); err != nil {
			t.Fatal(err)
		}
		asked, err := findByNetlink(addrPort(near.RemoteAddr()), addrPort(near.LocalAddr()))
		if err != nil {
			t.Fatal(err)
		}
		read, err := findInTable(addrPort(near.RemoteAddr()), addrPort(near.LocalAddr()))
		asked.Group = 0 // the table does not show the group
		if err != nil || read != asked {
			t.Errorf("the table says %+v, %v, and the kernel %+v", read, err, asked)
		}
		if asked.unread != len("abc") {
			t.Errorf("%d bytes are unread", asked.unread)
		}
		if _, err := findInTable(addrPort(near.RemoteAddr()), addrPort(near.RemoteAddr())); err != ErrNotFound {
			t.Errorf("what does not exist: %v", err)
		}
	}
}
