package peer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"execserver/internal/sys"

	"golang.org/x/sys/unix"
)

// CheckServer checks which process has accepted a connection, before this program sends a
// secret over it in clear. It accepts processes of this program's user, of root and of the
// named user, given by name or number: any other user may listen on the port of a server
// that is down. It refuses a process of this program's user in a PID namespace below,
// unless that user is named, because it may be a command in a sandbox. A server on another
// machine cannot be checked. CheckServer waits until the connection has been accepted or
// ctx ends.
func CheckServer(ctx context.Context, conn net.Conn, named string) error {
	local, remote := addrPort(conn.LocalAddr()), addrPort(conn.RemoteAddr())
	if !remote.IsValid() || !remote.Addr().IsLoopback() && remote.Addr() != local.Addr() {
		return nil
	}
	also := -1
	if named != "" {
		uid, err := userNumber(named)
		if err != nil {
			return err
		}
		also = uid
	}
	found, err := waitAccepted(ctx, conn)
	switch {
	case err != nil:
		return err
	case found.UID == also, found.UID == 0 && os.Geteuid() != 0:
		return nil
	case isUnknownUser(found.UID):
		return unknownServer("its user is unknown in this user namespace")
	case found.UID != os.Geteuid():
		return &ServerError{userName(found.UID), describeHolder(found) + ", who listens there and is neither this user nor root"}
	}
	own, err := ownLimits()
	if err != nil {
		return nil // confinement is unknown
	}
	own.filters = math.MaxInt // a server with more filters is hardened, not confined
	var judge Checker
	// The kernel has the socket a moment before the server has its descriptor.
	for pause := acceptPause; pause < maxAcceptPause; pause *= 2 {
		if _, ok := judge.holders.PID(found); ok {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	_, how, why := judge.checkHolder(found, own)
	if how == "" && why == "" {
		return nil
	}
	if how != "" {
		why = "it is confined, " + how
	}
	return &ServerError{userName(found.UID), "a process of this user that may not be the server: " + why}
}

// userNumber returns the id of a user, given by name or number.
func userNumber(named string) (int, error) {
	if uid, err := strconv.ParseUint(named, 10, 32); err == nil {
		return int(uid), nil
	}
	u, err := user.Lookup(named)
	if err != nil {
		return 0, fmt.Errorf("find the user %q: %w", named, err)
	}
	return strconv.Atoi(u.Uid)
}

// acceptTimeout bounds the wait for the server to accept a connection if the caller has set
// no deadline. acceptPause is the first pause between two polls, and maxAcceptPause the
// longest.
const (
	acceptTimeout  = 30 * time.Second
	acceptPause    = 500 * time.Microsecond
	maxAcceptPause = 50 * time.Millisecond
)

// waitAccepted finds the peer's socket once the connection has been accepted.
func waitAccepted(ctx context.Context, conn net.Conn) (Socket, error) {
	timeout := acceptTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = time.Until(deadline) * 3 / 4 // the rest is for reporting the error
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	local, remote := addrPort(conn.LocalAddr()), addrPort(conn.RemoteAddr())
	for pause := acceptPause; ; pause = min(2*pause, maxAcceptPause) {
		found, err := FindTCP(local, remote)
		switch {
		case err == nil && !found.Orphaned():
			return found, nil
		case err != nil && err != ErrNotFound:
			return Socket{}, unknownServer(err.Error())
		}
		if err := connEnded(conn); err != nil {
			return Socket{}, err
		}
		if err != nil && pause == maxAcceptPause { // a new connection appears sooner
			return Socket{}, unknownServer("its socket is in another network namespace, or gone")
		}
		select {
		case <-ctx.Done():
			return Socket{}, unknownServer("nobody has accepted the connection")
		case <-time.After(pause):
		}
	}
}

// connEnded returns why a connection can carry no more data, or nil.
func connEnded(conn net.Conn) error {
	var n int
	var peeked error
	err := sys.OnDescriptor(conn, func(fd int) error {
		n, _, peeked = unix.Recvfrom(fd, make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return nil
	})
	switch {
	case err != nil:
		return err
	case peeked == nil && n == 0:
		return errors.New("the server ended the connection before anything was sent")
	case peeked != nil && peeked != unix.EAGAIN && peeked != unix.EINTR:
		return os.NewSyscallError("read", peeked)
	}
	return nil
}

func unknownServer(why string) error {
	return fmt.Errorf("refusing to send a secret to an unknown listener of this machine: %s; "+
		"let the server listen at wss:// or on a unix socket", why)
}

// isUnknownUser reports whether uid is the overflow uid, which stands for all users without
// an id in this user namespace.
func isUnknownUser(uid int) bool {
	overflow, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	return err == nil && strings.TrimSpace(string(overflow)) == strconv.Itoa(uid) && !knowsAllUsers()
}

// describeHolder describes the holder of a socket for an error.
func describeHolder(s Socket) string {
	who := "the user " + userName(s.UID)
	pid, ok := new(Holders).PID(s)
	if !ok {
		return who
	}
	name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return who
	}
	return fmt.Sprintf("%s (process %d, %s)", who, pid, strings.TrimSpace(string(name)))
}

func userName(uid int) string {
	number := strconv.Itoa(uid)
	if u, err := user.LookupId(number); err == nil {
		return u.Username
	}
	return number
}
