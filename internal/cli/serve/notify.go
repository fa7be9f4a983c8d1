package serve

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// firstSocket is the descriptor of the first socket that systemd passes.
const firstSocket = 3

// maxSockets bounds the sockets that systemd passes.
const maxSockets = 64

// serviceManager is the unix socket on which systemd receives the state of this program, or "".
type serviceManager string

// HandedOver returns the number of sockets that systemd has passed, and the service manager. It
// removes both from the environment, so that processes do not inherit them.
func HandedOver() (sockets int, s serviceManager) {
	s = serviceManager(os.Getenv("NOTIFY_SOCKET"))
	pid, _ := strconv.Atoi(os.Getenv("LISTEN_PID"))
	if pid != 0 && pid == startedAs() {
		sockets, _ = strconv.Atoi(os.Getenv("LISTEN_FDS"))
	}
	for _, name := range []string{"NOTIFY_SOCKET", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID"} {
		_ = os.Unsetenv(name) // the names are well-formed
	}
	return min(max(sockets, 0), maxSockets), s
}

// Say sends the state to systemd, and ignores errors.
func (s serviceManager) Say(state string) {
	if s == "" || !strings.HasPrefix(string(s), "/") && !strings.HasPrefix(string(s), "@") {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: string(s), Net: "unixgram"})
	if err != nil {
		return
	}
	_, _ = conn.Write([]byte(state))
	_ = conn.Close()
}

// inheritedAddress returns the address of the sockets from systemd: all TCP, or all unix sockets.
// The most open one decides about authentication.
func inheritedAddress(sockets int) (l Address, err error) {
	if sockets == 0 {
		return l, errors.New("--listen systemd: systemd has passed no socket; start this program by a socket unit, with Accept=no")
	}
	for fd := firstSocket; fd < firstSocket+sockets; fd++ {
		listener, err := inheritedListener(fd)
		if err != nil {
			return l, fmt.Errorf("--listen systemd: the socket with the descriptor %d: %w", fd, err)
		}
		kind := listenUnix
		if address, ok := listener.Addr().(*net.TCPAddr); ok {
			kind = ListenWebSocket
			ip, _ := netip.AddrFromSlice(address.IP) // of a socket that listens it is one
			if len(l.inherited) == 0 || !ip.Unmap().IsLoopback() {
				l.ip, l.address = ip, address.String()
			}
		}
		if len(l.inherited) == 0 {
			l.Kind, l.address = kind, listener.Addr().String()
		}
		if kind != l.Kind {
			return l, errors.New("--listen systemd: the socket unit has TCP ports and unix sockets; run a server for each kind")
		}
		l.inherited = append(l.inherited, listener)
	}
	return l, nil
}

// inheritedListener returns the listener of an inherited socket.
func inheritedListener(fd int) (net.Listener, error) {
	file := os.NewFile(uintptr(fd), "socket")
	if file == nil {
		return nil, errors.New("it is not open")
	}
	defer file.Close() // the listener has its own descriptor
	if !isListening(fd) {
		return nil, errors.New("it does not listen; the socket unit needs Accept=no")
	}
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("it is not a listening socket: %w", err)
	}
	switch address := listener.Addr().(type) {
	case *net.TCPAddr:
		return listener, nil
	case *net.UnixAddr:
		if address.Net == "unix" && strings.HasPrefix(address.Name, "/") {
			return listener, nil
		}
	}
	_ = listener.Close()
	return nil, errors.New("expected ListenStream= with a port, or with the path of a unix socket")
}
