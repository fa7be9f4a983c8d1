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

// CheckServer checks who has accepted a connection that this program has made, before it
// sends a secret in clear. Only this program's user, root and the named user, by name or by
// number, may: everybody else may listen at a port whose server is not up. Of this program's
// user, a process in a process namespace below may not either, unless that user is named: it
// may be a command in a sandbox. What is not on this
// machine cannot be checked. CheckServer waits until somebody has accepted the connection, or
// until ctx ends.
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
	found, err := awaitAccepted(ctx, conn)
	switch {
	case err != nil:
		return err
	case found.UID == also, found.UID == 0 && os.Geteuid() != 0:
		return nil
	case isUnknownUser(found.UID):
		return unknownServer("its user is unknown in this user namespace")
	case found.UID != os.Geteuid():
		return &ServerError{userName(found.UID), nameOf(found) + ", who listens there and is neither this user nor root"}
	}
	own, err := ownLimits()
	if err != nil {
		return nil // nobody can tell who is confined
	}
	own.filters = math.MaxInt // a server that has more of them is hardened
	how, why := new(Judge).holder(found, own)
	if how == "" && why == "" {
		return nil
	}
	if how != "" {
		why = "it is confined, " + how
	}
	return &ServerError{userName(found.UID), "a process of this user that may not be the server: " + why}
}

// userNumber returns the number of a user, given by name or by number.
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

// acceptTimeout is how long a server may take to accept a connection, if the caller has set no
// deadline. acceptPause is the first pause between two looks, and maxAcceptPause the longest.
const (
	acceptTimeout  = 30 * time.Second
	acceptPause    = 500 * time.Microsecond
	maxAcceptPause = 50 * time.Millisecond
)

// awaitAccepted finds the other end of a connection when somebody has accepted it.
func awaitAccepted(ctx context.Context, conn net.Conn) (Socket, error) {
	patience := acceptTimeout
	if deadline, ok := ctx.Deadline(); ok {
		patience = time.Until(deadline) * 3 / 4 // the rest is to say what was missing
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
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
		if err := ended(conn); err != nil {
			return Socket{}, err
		}
		if err != nil && pause == maxAcceptPause { // a new connection is found within moments
			return Socket{}, unknownServer("its socket is in another network namespace, or gone")
		}
		select {
		case <-ctx.Done():
			return Socket{}, unknownServer("nobody has accepted the connection")
		case <-time.After(pause):
		}
	}
}

// ended returns why nothing can come over a connection any more.
func ended(conn net.Conn) error {
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

// isUnknownUser reports whether a number stands for all users that the user namespace of this
// program does not know.
func isUnknownUser(uid int) bool {
	overflow, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	return err == nil && strings.TrimSpace(string(overflow)) == strconv.Itoa(uid) && !knowsAllUsers()
}

// nameOf names who holds a socket, for people.
func nameOf(s Socket) string {
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
