package peer

import (
	"bytes"
	"errors"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
	"execserver/internal/sys"
)

// Judge decides whether the process at the other end of a connection to a listener is
// confined: in a process namespace below that of this program, or under no_new_privs with
// more filters of system calls than this program has. Such a process must not get out
// through a program that is not. The zero value is ready to use. The methods may be called
// concurrently.
type Judge struct {
	// Proven says that the peers have shown credentials, which no confined process has.
	Proven bool

	Addresses Addresses   // of this machine
	confines  atomic.Bool // this program has confined a process with a network
	holders   Holders

	slow sync.Mutex // serializes looks at all processes
	last []int      // the processes that the last look has found confined

	mu     sync.Mutex
	begun  uint64 // looks
	asking int    // who waits for one
}

// Confines says that this program confines a process that has a network.
func (j *Judge) Confines() { j.confines.Store(true) }

// TCP judges the process that holds the peer's socket.
func (j *Judge) TCP(s Socket) error {
	if s.UID == 0 && os.Geteuid() != 0 && showsRoot() {
		return &UnknownError{"it comes from root, whose processes a program of another user may not examine"}
	}
	own, err := ownLimits()
	if err != nil {
		return nil // CanJudge has said so
	}
	how, why := j.holder(s, own)
	switch {
	case how != "":
		return &ConfinedError{how}
	case why != "":
		return &UnknownError{why}
	}
	return nil
}

// holder returns what confines the process that holds a socket, and not a process with the
// limits own, or why nobody can tell.
//
// A process that is not confined is often found at once. If none is found, the socket may be
// that of a process in another process namespace, or of one whose descriptors are closed to
// this program, such as sshd, or one that a confined process has left behind: the kernel keeps
// a socket alive that is on its way between two sockets, when its process has ended. So there
// must be somebody else whose it can be, and no confined process of the same user that may be
// the one. That one's descriptors prove nothing, because it can pass the socket around faster
// than anybody looks.
func (j *Judge) holder(s Socket, own limits) (confined, unknown string) {
	if pid, ok := j.holders.PID(s); ok { // and not a child that it is just starting, perhaps in a sandbox
		confined, err := limitsOf(pid, own)
		// What /proc says belongs to the process that holds the socket if that still does.
		search := newSearch(s.Inode)
		if err != nil || !search.in(pid) {
			return "", "the process at its other end has let go of it"
		}
		return confined, ""
	}
	if hides() {
		return "", "the /proc of this machine hides processes (hidepid)"
	}
	if !j.hasUnseen(s, own) {
		return "", "no process of this machine holds its other end"
	}
	others, err := j.confined(own)
	if err != nil {
		return "", err.Error()
	}
	for _, pid := range others {
		if mayHold(pid, s, own) {
			return "", "no process that this program may examine holds its other end, and one of the same user is confined"
		}
	}
	return "", ""
}

// hasUnseen reports whether a process that is not confined may hold a socket without being
// seen: one outside of this program's process namespace, such as another container of a pod, or
// one of the socket's user that keeps its descriptors to itself, such as sshd. Inside a process
// namespace nobody can tell the first from what a confined process has left behind: then those
// are admitted who have shown credentials, and others until this program confines a process with
// a network.
func (j *Judge) hasUnseen(s Socket, own limits) bool {
	if !seesAll() {
		return j.Proven || !j.confines.Load()
	}
	pids, err := procfs.Pids()
	return err == nil && slices.ContainsFunc(pids, func(pid int) bool {
		p, err := openProcess(strconv.Itoa(pid))
		if err != nil {
			return false
		}
		defer p.close()
		l, err := p.limits()
		return err == nil && l.beyond(own) == "" && p.keepsDescriptors() && s.mayBeOf(p, l)
	})
}

// keepsDescriptors reports whether this program may not look at the descriptors of a process.
// The link of its directory needs the same right. To list the descriptors does not: a program in
// a user namespace sees their numbers, and not what they are.
func (p process) keepsDescriptors() bool {
	_, err := unix.Readlinkat(p.dir, "cwd", make([]byte, 1))
	return err == unix.EACCES
}

// seesAll reports whether /proc shows all processes of the machine: this program is in the first
// process namespace, which has the same number on every machine.
var seesAll = sync.OnceValue(func() bool {
	namespace, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && namespace == "pid:[4026531836]" && procfs.Foreign() == nil
})

// showsRoot reports whether /proc shows a process of root, or may hide one. In a container it
// may show none: who passes a port of a pod on connects from outside as root.
func showsRoot() bool {
	pids, err := procfs.Pids()
	if err != nil || hides() {
		return true
	}
	return slices.ContainsFunc(pids, func(pid int) bool {
		uid, there := owner(pid)
		if !there || uid != 0 {
			return false
		}
		p, err := openProcess(strconv.Itoa(pid))
		if err != nil {
			return !isGone(err)
		}
		defer p.close()
		l, err := p.limits() // it may be one that hides from its own user
		return err != nil && !isGone(err) || slices.Contains(l.users, 0)
	})
}

// limitsOf returns what confines a process, and not this program.
func limitsOf(pid int, own limits) (beyond string, err error) {
	p, err := openProcess(strconv.Itoa(pid))
	if err != nil {
		return "", err
	}
	defer p.close()
	l, err := p.limits()
	if err != nil {
		return "", err
	}
	return l.beyond(own), nil
}

// mayHold reports whether a process is confined, and may hold a socket.
func mayHold(pid int, s Socket, own limits) bool {
	p, err := openProcess(strconv.Itoa(pid))
	if err != nil {
		return !isGone(err)
	}
	defer p.close()
	l, err := p.limits()
	if err != nil {
		return !isGone(err)
	}
	return l.beyond(own) != "" && s.mayBeOf(p, l)
}

// mayBeOf reports whether a socket may be that of a process with the limits l: it lives, is of
// the socket's user and in the same network namespace, and may have made it.
func (s Socket) mayBeOf(p process, l limits) bool {
	return !l.ended && slices.Contains(l.users, s.UID) && p.sharesNetwork() && s.madeBy(p)
}

// confined returns the processes that are confined. Those who ask at the same time share a
// look, which has begun after they asked.
func (j *Judge) confined(own limits) ([]int, error) {
	asked := j.count(1)
	j.slow.Lock()
	defer j.slow.Unlock()
	defer j.count(-1)
	if j.isNewer(asked) {
		return j.last, nil
	}
	pids, err := procfs.Pids()
	if err != nil {
		return nil, err
	}
	var found []int
	for _, pid := range pids {
		if beyond, err := limitsOf(pid, own); err == nil && beyond != "" || err != nil && !isGone(err) {
			found = append(found, pid)
		}
	}
	j.last = found
	return found, nil
}

// count counts who waits for a look, and returns how many looks have begun.
func (j *Judge) count(more int) (begun uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.asking += more
	return j.begun
}

// isNewer reports whether the last look has begun after somebody asked. Otherwise another one
// begins.
func (j *Judge) isNewer(asked uint64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.begun > asked {
		return true
	}
	j.begun++
	return false
}

// Unix judges the process that has connected to a unix socket, whoever holds the connection
// now.
func (j *Judge) Unix(conn net.Conn) error {
	own, err := ownLimits()
	if err != nil {
		return nil // CanJudge has said so
	}
	pidfd, err := peerProcess(conn)
	switch {
	case errors.Is(err, unix.ENOPROTOOPT): // before Linux 6.5
		return j.unixByNumber(conn, own)
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL):
		return &UnknownError{"the process that has connected has ended"}
	case err != nil:
		return &UnknownError{err.Error()}
	}
	defer unix.Close(pidfd)
	pid, err := numberOf(pidfd)
	switch {
	case err != nil:
		return &UnknownError{err.Error()}
	case pid == 0:
		return nil // in a process namespace that /proc does not show
	case pid < 0:
		return &UnknownError{"the process that has connected has ended"}
	}
	beyond, err := limitsOf(pid, own)
	// What /proc says belongs to this process if nobody has reaped it by now.
	if errors.Is(unix.PidfdSendSignal(pidfd, 0, nil, 0), unix.ESRCH) {
		return &UnknownError{"the process that has connected has ended"}
	}
	return verdict(beyond, err)
}

func verdict(beyond string, err error) error {
	switch {
	case err != nil:
		return &UnknownError{"/proc does not show the process that has connected: " + err.Error()}
	case beyond != "":
		return &ConfinedError{beyond}
	}
	return nil
}

// unixByNumber judges by the number that the process had when it connected, which another
// process may have by now.
func (j *Judge) unixByNumber(conn net.Conn, own limits) error {
	var credentials *unix.Ucred
	err := sys.OnDescriptor(conn, func(fd int) (err error) {
		credentials, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	switch {
	case err != nil:
		return &UnknownError{err.Error()}
	case credentials.Pid == 0:
		return nil // in a process namespace that this program does not see
	case procfs.Foreign() != nil:
		return nil // CanJudge has said so
	}
	return verdict(limitsOf(int(credentials.Pid), own))
}

// soPeerPidfd is SO_PEERPIDFD of Linux 6.5.
const soPeerPidfd = 77

// peerProcess returns a descriptor of the process that has connected.
func peerProcess(conn net.Conn) (pidfd int, err error) {
	err = sys.OnDescriptor(conn, func(fd int) (err error) {
		pidfd, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, soPeerPidfd)
		return err
	})
	return pidfd, err
}

// numberOf returns the number of a process in the namespace of /proc, which may be another
// one than this program's: 0 if it has none, and less if it has ended.
func numberOf(pidfd int) (int, error) {
	text, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(pidfd))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		if value, ok := bytes.CutPrefix(line, []byte("Pid:")); ok {
			return strconv.Atoi(string(bytes.TrimSpace(value)))
		}
	}
	return 0, errors.New("/proc does not say which process has connected")
}

// CanJudge returns nil if a Judge sees who is confined on this machine, and the reason if
// not: the user and the credentials of a peer then decide alone.
func CanJudge() error {
	if _, err := ownLimits(); err != nil {
		return errors.Join(procfs.Foreign(), err)
	}
	return nil
}
