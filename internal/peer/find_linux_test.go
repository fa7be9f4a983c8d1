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
		asked.Group, read.above = 0, "" // the table does not show the group, nor what is above TCP
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

// TestWhatIsAbove has a connection of multipath TCP.
func TestWhatIsAbove(t *testing.T) {
	var config net.ListenConfig
	config.SetMultipathTCP(true)
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, row := range []struct {
		multipath bool
		above     string
	}{{false, ""}, {true, "mptcp"}} {
		var dialer net.Dialer
		dialer.SetMultipathTCP(row.multipath)
		near, err := dialer.DialContext(t.Context(), "tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer near.Close()
		if row.multipath {
			if is, err := near.(*net.TCPConn).MultipathTCP(); !is {
				t.Skip("this machine has no multipath TCP", err)
			}
		}
		local, remote := addrPort(near.RemoteAddr()), addrPort(near.LocalAddr())
		if asked, err := findByNetlink(local, remote); err != nil || asked.above != row.above {
			t.Errorf("multipath %v: above TCP is %q, %v", row.multipath, asked.above, err)
		}
		// The table does not tell such a connection from others.
		if read, err := findInTable(local, remote); err != nil || read.above == "" && row.multipath {
			t.Errorf("multipath %v, in the table: above TCP is %q, %v", row.multipath, read.above, err)
		}
		socket, err := findByNetlink(local, remote)
		if err != nil {
			t.Fatal(err)
		}
		socket.local, socket.remote = local, remote
		far, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer far.Close()
		if err := socket.AwaitRead(t.Context()); IsConfinementError(err) != row.multipath {
			t.Errorf("multipath %v: the proof of a reader: %v", row.multipath, err)
		}
	}
}
