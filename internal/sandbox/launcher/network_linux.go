package launcher

import (
	"errors"

	"golang.org/x/sys/unix"

	"execserver/internal/seccomp"
)

// confineNetwork prepares the network of a command that must not use the machine's.
func (s *Spec) confineNetwork() *failure {
	if s.Network == seccomp.NetworkMachine {
		return nil
	}
	for fd := range 3 {
		if !ReachesPeerAlone(fd) {
			return &failure{"confine the network", errors.New("a stream of the command is a socket that can reach others than its peer")}
		}
	}
	if s.Network == seccomp.NetworkOwn && !s.Check { // bubblewrap has done it
		raiseLoopback()
	}
	return nil
}

// ReachesPeerAlone reports whether a descriptor is not a socket, or is a connected unix
// socket with a stream or a sequence of packets. Other sockets can be connected anew, and
// stay in the network namespace in which they were made.
func ReachesPeerAlone(fd int) bool {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return true
	}
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || domain != unix.AF_UNIX {
		return false
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_STREAM && kind != unix.SOCK_SEQPACKET {
		return false
	}
	_, err = unix.Getpeername(fd)
	return err == nil
}

// raiseLoopback gives the command's network namespace the addresses of the loopback
// interface. Where the kernel refuses it, as to a program in a container that may make
// namespaces but not configure them, the namespace reaches nothing at all.
func raiseLoopback() {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil || unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, request) != nil {
		return
	}
	request.SetUint16(request.Uint16() | unix.IFF_UP)
	_ = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}
