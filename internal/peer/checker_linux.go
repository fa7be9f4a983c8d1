package peer

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
	"execserver/internal/sys"
)

// Checker checks whether the process at the other end of an accepted connection is
// confined: in a PID namespace below this program's, or under no_new_privs with more
// seccomp filters than this program has. Such a process must not escape through a program
// that is not confined. The zero value is ready to use. The methods may be called
// concurrently.
type Checker struct {
	// Authenticated reports whether the peers have presented credentials, which no
	// confined process has.
	Authenticated bool

	// Isolated reports whether a process and its descendants are confined so that they
	// cannot receive descriptors from others. nil: none is known to be.
	Isolated func(pid int) bool

	Addresses Addresses   // of this machine
	confining atomic.Bool // this program has confined a process with network access
	holders   Holders

	scanMu    sync.Mutex // serializes scans of all processes
	lastFound []suspect  // by the latest scan
	lastError error

	mu      sync.Mutex
	scans   uint64 // started so far
	waiting int    // callers that wait for a scan
}

// SetConfines records that this program confines a process with network access.
func (c *Checker) SetConfines() { c.confining.Store(true) }

// CheckTCP checks the process that holds the peer's socket. seen is false if that is a process
// that this program may not examine. The peer then must prove by [Socket.AwaitRead] that there is
// one.
func (c *Checker) CheckTCP(s Socket) (seen bool, err error) {
	if s.UID == 0 && os.Geteuid() != 0 && showsRootProcess() {
		return false, &UnknownError{"it comes from root, whose processes a program of another user may not examine"}
	}
	own, err := ownLimits()
	if err != nil {
		return true, nil // reported by CanCheck
	}
	seen, how, why := c.checkHolder(s, own)
	switch {
	case how != "":
		return seen, &ConfinedError{how}
	case why != "":
		return seen, &UnknownError{why}
	case !seen && s.above != "":
		return false, s.noProofOfReader()
	}
	return seen, nil
}

// CheckUnix checks the process that connected to a unix socket, even if another one holds
// the connection now.
func (c *Checker) CheckUnix(conn net.Conn) error {
	own, err := ownLimits()
	if err != nil {
		return nil // reported by CanCheck
	}
	pidfd, err := peerPidfd(conn)
	switch {
	case errors.Is(err, unix.ENOPROTOOPT): // before Linux 6.5
		return c.checkUnixByPid(conn, own)
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL):
		return &UnknownError{"the process that has connected has ended"}
	case err != nil:
		return &UnknownError{err.Error()}
	}
	defer unix.Close(pidfd)
	pid, err := pidOf(pidfd)
	switch {
	case err != nil:
		return &UnknownError{err.Error()}
	case pid == 0:
		return nil // in a PID namespace outside that of /proc
	case pid < 0:
		return &UnknownError{"the process that has connected has ended"}
	}
	beyond, err := limitsOf(pid, own)
	// The limits are those of this process if it has not been reaped since.
	if errors.Is(unix.PidfdSendSignal(pidfd, 0, nil, 0), unix.ESRCH) {
		return &UnknownError{"the process that has connected has ended"}
	}
	return verdict(beyond, err)
}

// CanCheck returns nil if a Checker can see which processes of this machine are confined,
// and otherwise the reason. Then only the user and the credentials of a peer count.
func CanCheck() error {
	if _, err := ownLimits(); err != nil {
		return errors.Join(procfs.CheckNamespace(), err)
	}
	return nil
}

// checkHolder returns what confines the process that holds a socket, compared with a
// process with the limits own, or why that cannot be determined. seen reports that it has examined
// the process.
//
// An unconfined process is usually found at once. If no holder is found, it may be in
// another PID namespace, or hide its descriptors from this program, as sshd does. Or a
// confined process has left the socket behind: the kernel keeps a socket alive that is in
// flight between two other sockets after its process has exited. So there must be an
// unconfined process that may be the holder, and no confined process of the same user that
// may be. The descriptors of the latter prove nothing, because it can pass the socket
// around faster than they can be read.
//
// That does not exclude that the socket is in flight to another program, which has not received
// it yet, and that the confined process has ended.
func (c *Checker) checkHolder(s Socket, own limits) (seen bool, confined, unknown string) {
	if pid, ok := c.holders.PID(s); ok { // the parent, not a child that is about to exec in a sandbox
		confined, err := limitsOf(pid, own)
		// The limits are those of the holder if it still holds the socket.
		search := newSearch(s.Inode)
		if err != nil || !search.in(pid) {
			return true, "", "the process at its other end has closed it"
		}
		return true, confined, ""
	}
	if procHides() {
		return false, "", "the /proc of this machine hides processes (hidepid)"
	}
	if !c.hasUnseen(s, own) {
		return false, "", "no process of this machine holds its other end"
	}
	others, err := c.confined(own)
	if err != nil {
		return false, "", err.Error()
	}
	if slices.ContainsFunc(others, func(other suspect) bool { return other.mayHold(s, c.Authenticated) }) {
		return false, "", "no process that this program may examine holds its other end, and one of the same user is confined"
	}
	if err := collectUnixSockets(); err != nil {
		return false, "", err.Error()
	}
	if now, err := FindTCP(s.local, s.remote); err != nil || now.Inode != s.Inode {
		return false, "", "the process at its other end has ended"
	}
	return false, "", ""
}

// hasUnseen reports whether an unconfined process that this program cannot see may hold a
// socket: one outside this program's PID namespace, such as another container of a pod, or
// one of the socket's user that hides its descriptors, such as sshd. Inside a PID namespace
// the former cannot be told from a socket left behind by a confined process. Then
// authenticated peers are admitted, and others until this program confines a process with
// network access.
func (c *Checker) hasUnseen(s Socket, own limits) bool {
	if !seesAllProcesses() {
		return c.Authenticated || !c.confining.Load()
	}
	pids, err := procfs.Pids()
	return err == nil && slices.ContainsFunc(pids, func(pid int) bool {
		p, err := openProcess(strconv.Itoa(pid))
		if err != nil {
			return false
		}
		defer p.close()
		l, err := p.limits()
		return err == nil && l.beyond(own) == "" && p.hidesDescriptors() && l.runsAs(s) && s.mayBelongTo(p)
	})
}

// suspect is a confined process.
type suspect struct {
	pid      int
	unknown  bool  // it cannot be examined; the rest is not set
	users    []int // as which it runs
	network  bool  // it is, or may be, in this program's network namespace
	isolated bool  // it cannot receive descriptors from others
	group    uint64
}

// maxRounds bounds how often confined looks again. On a busy machine a few times are enough.
const maxRounds = 100

// confined returns the confined processes. Concurrent callers share a scan that started
// after they called.
//
// A confined process could start another one and end, again and again, so that each has ended
// when it is examined. But one of them is in every list of processes, because the kernel lists
// pids in the order in which it assigns them. So while a listed process has ended unexamined,
// the scan lists the processes again. It also does when the kernel has begun with the lowest pids
// again: a process may then have a pid that was passed already, or that belonged to another one.
// The kernel may have done that for a process that is just being made, and not listed yet. So one
// list that shows nothing new is not enough.
func (c *Checker) confined(own limits) ([]suspect, error) {
	asked := c.addWaiting(1)
	c.scanMu.Lock()
	defer c.scanMu.Unlock()
	defer c.addWaiting(-1)
	if c.startedSince(asked) {
		return c.lastFound, c.lastError
	}
	c.lastFound, c.lastError = c.scan(own)
	return c.lastFound, c.lastError
}

func (c *Checker) scan(own limits) ([]suspect, error) {
	var found []suspect
	examined := make(map[int]bool)
	quiet := 0 // lists in a row without a process that ended unexamined
	last, err := procfs.LastPid()
	if err != nil {
		return nil, err
	}
	for range maxRounds {
		pids, err := procfs.Pids()
		if err != nil {
			return nil, err
		}
		ended, before := false, last
		if last, err = procfs.LastPid(); err != nil {
			return nil, err
		}
		if last < before {
			clear(examined)
			ended = true
		}
		for _, pid := range slices.Backward(pids) { // the youngest may end first
			if examined[pid] {
				continue
			}
			is, err := c.examine(pid, own)
			switch {
			case isGone(err):
				ended = true
				continue
			case err == errZombie: // it may have started another one after the list was made
				ended = true
			case err != nil:
				found = append(found, suspect{pid: pid, unknown: true})
			case is != nil:
				found = append(found, *is)
			}
			examined[pid] = true
		}
		if ended {
			quiet = 0
		} else if quiet++; quiet == 2 {
			return found, nil
		}
	}
	return nil, errors.New("no process that this program may examine holds its other end, and processes of this machine " +
		"start and end so fast that it cannot be seen whether one of them is confined")
}

var errZombie = errors.New("the process has ended")

// examine returns what is known about a process if it is confined, and nil if it is not. It
// fails if the process, or an ancestor that matters, ends meanwhile.
func (c *Checker) examine(pid int, own limits) (*suspect, error) {
	p, err := openProcess(strconv.Itoa(pid))
	if err != nil {
		return nil, err
	}
	defer p.close()
	l, err := p.limits()
	if err != nil || l.beyond(own) == "" {
		return nil, err
	}
	is := &suspect{pid: pid, users: l.users, network: p.sharesNetwork()}
	switch {
	case l.ended:
		return nil, errZombie
	case c.Authenticated:
		is.group = p.fixedGroup()
	case !is.network:
		if is.isolated, err = c.isIsolated(pid); err != nil {
			return nil, err
		}
	}
	if l, err = p.limits(); err == nil && l.ended {
		err = unix.ESRCH
	}
	return is, err
}

// addWaiting counts the callers that wait for a scan, and returns how many scans have
// started.
func (c *Checker) addWaiting(more int) (begun uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting += more
	return c.scans
}

// startedSince reports whether a scan has started after the given count. If not, it counts
// a new one.
func (c *Checker) startedSince(asked uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.scans > asked {
		return true
	}
	c.scans++
	return false
}

// mayHold reports whether a confined process may hold a socket. Without authentication it is
// not enough that the process cannot have made the socket: another one may have passed it on and
// exited. Only this program's sandboxes without network access cannot receive any.
func (c suspect) mayHold(s Socket, authenticated bool) bool {
	switch {
	case c.unknown:
		return true
	case !slices.Contains(c.users, s.UID):
		return false
	case authenticated:
		return c.network && s.mayBeMadeIn(c.group)
	}
	return c.network || !c.isolated
}

// isIsolated reports whether a process or an ancestor is isolated. Other children of this
// program may be containers, which can get descriptors from anywhere. In a PID namespace
// that ends with its first process, orphans stay below that one.
func (c *Checker) isIsolated(pid int) (bool, error) {
	if c.Isolated == nil || procfs.CheckNamespace() != nil {
		return false, nil
	}
	for pid > 1 && !c.Isolated(pid) {
		stat, err := procfs.ReadStat(pid)
		if err != nil {
			return false, err
		}
		pid = stat.Parent
	}
	return pid > 1, nil
}

// mayBelongTo reports whether a process is in the network namespace of a socket and may
// have made it.
func (s Socket) mayBelongTo(p process) bool {
	return p.sharesNetwork() && s.mayBeMadeIn(p.fixedGroup())
}

// runsAs reports whether a process with these limits is running as the socket's user.
func (l limits) runsAs(s Socket) bool { return !l.ended && slices.Contains(l.users, s.UID) }

// hidesDescriptors reports whether this program may not read the descriptors of a process.
// Reading the link of its directory needs the same right. Listing the descriptors does not:
// in a user namespace a program sees their numbers, but not what they are.
func (p process) hidesDescriptors() bool {
	_, err := unix.Readlinkat(p.dir, "cwd", make([]byte, 1))
	return err == unix.EACCES
}

// seesAllProcesses reports whether /proc shows all processes of the machine: this program
// is in the initial PID namespace, whose inode is the same on every machine.
var seesAllProcesses = sync.OnceValue(func() bool {
	namespace, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && namespace == "pid:[4026531836]" && procfs.CheckNamespace() == nil
})

// showsRootProcess reports whether /proc shows, or may hide, a process of root. In a
// container it may show none: a forwarder of a pod's ports connects from outside as root.
func showsRootProcess() bool {
	pids, err := procfs.Pids()
	if err != nil || procHides() {
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
		l, err := p.limits() // the owner of its directory may differ from its user
		return err != nil && !isGone(err) || slices.Contains(l.users, 0)
	})
}

// limitsOf returns what confines a process but not this program.
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

func verdict(beyond string, err error) error {
	switch {
	case err != nil:
		return &UnknownError{"/proc does not show the process that has connected: " + err.Error()}
	case beyond != "":
		return &ConfinedError{beyond}
	}
	return nil
}

// checkUnixByPid checks the process that has the pid of the one that connected. The pid may
// have been reused.
func (c *Checker) checkUnixByPid(conn net.Conn, own limits) error {
	var credentials *unix.Ucred
	err := sys.OnDescriptor(conn, func(fd int) (err error) {
		credentials, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	switch {
	case err != nil:
		return &UnknownError{err.Error()}
	case credentials.Pid == 0:
		return nil // in a PID namespace that this program cannot see
	case procfs.CheckNamespace() != nil:
		return nil // reported by CanCheck
	}
	return verdict(limitsOf(int(credentials.Pid), own))
}

// soPeerPidfd is SO_PEERPIDFD of Linux 6.5.
const soPeerPidfd = 77

// peerPidfd returns a pidfd of the process that connected.
func peerPidfd(conn net.Conn) (pidfd int, err error) {
	err = sys.OnDescriptor(conn, func(fd int) (err error) {
		pidfd, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, soPeerPidfd)
		return err
	})
	return pidfd, err
}

// pidOf returns the pid of a process in the namespace of /proc, which may differ from this
// program's. It is 0 if the process has none there, and negative if it has exited.
func pidOf(pidfd int) (int, error) {
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

// collectTimeout bounds collectUnixSockets, and collectPause, in milliseconds, is the time
// after which it triggers another collection, in case one was too early.
const (
	collectTimeout = 5 * time.Second
	collectPause   = 10
)

// collectUnixSockets makes the kernel free the sockets that are kept alive only by being in
// flight between unix sockets that no process holds: two such sockets, each in flight
// through the other, remain until the kernel's garbage collection. It leaves such a pair of
// its own with the write end of a pipe in flight. When the pipe reports EOF, all earlier
// ones have been freed, too.
func collectUnixSockets() error {
	pipe := make([]int, 2)
	if err := sys.Pipe2(pipe, unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer sys.Close(pipe[0])
	if err := leaveInFlight(pipe[1]); err != nil {
		return err
	}
	fds := []unix.PollFd{{Fd: int32(pipe[0]), Events: unix.POLLIN}}
	for deadline := time.Now().Add(collectTimeout); time.Now().Before(deadline); {
		// Closing a unix socket while others are in flight triggers the collection.
		pair, err := sys.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("make unix sockets: %w", err)
		}
		sys.Close(pair[0])
		sys.Close(pair[1])
		if n, err := unix.Poll(fds, collectPause); n > 0 {
			return nil
		} else if err != nil && err != unix.EINTR {
			return fmt.Errorf("wait until the kernel has collected unix sockets: %w", err)
		}
	}
	return fmt.Errorf("the kernel has not collected unix sockets for %v", collectTimeout)
}

// leaveInFlight closes a descriptor that it has put in flight, with a pair of unix sockets
// each of which is in flight through the other.
func leaveInFlight(fd int) error {
	defer sys.Close(fd)
	pair, err := sys.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make unix sockets: %w", err)
	}
	defer sys.Close(pair[0])
	defer sys.Close(pair[1])
	if err := sys.Sendmsg(pair[0], []byte{0}, unix.UnixRights(pair[0], fd), nil, 0); err != nil {
		return fmt.Errorf("pass descriptors: %w", err)
	}
	if err := sys.Sendmsg(pair[1], []byte{0}, unix.UnixRights(pair[1]), nil, 0); err != nil {
		return fmt.Errorf("pass a descriptor: %w", err)
	}
	return nil
}
