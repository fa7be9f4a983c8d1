package cgroup

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// Claimed is a directory in the hierarchy that a server has for its own. Below
// it are:
//
//	processes/  a group for every process, killed when the server is gone
//	kept/       a group for every process whose descendants may outlive it
//	server      the server itself, where it had to make room
type Claimed struct {
	path string
	made atomic.Uint64 // groups of processes

	lock   int // descriptor of the directory, locked as long as somebody uses it
	unlock sync.Once
}

// Claim makes such a directory below the group that this program runs in, and
// enables those of the controllers in it that can be had: all where the group
// was delegated to this program, which then moves itself to a group below as
// the kernel demands; otherwise those that are enabled for groups below already.
// What killed servers have left is removed.
func Claim(controllers []string) (*Claimed, error) {
	if err := supported(); err != nil {
		return nil, err
	}
	base, root, err := current()
	if err != nil {
		return nil, err
	}
	removeStale(base)
	c, err := makeClaim(base)
	if err != nil {
		return nil, err
	}
	if err := c.populate(base, root, controllers); err != nil {
		c.Remove()
		return nil, err
	}
	return c, nil
}

// claimName is the form of the names of claimed directories: process id and a
// random number.
var claimName = regexp.MustCompile(`^exec-server-[0-9]+-[0-9a-f]{8}$`)

// makeClaim makes the directory of a claim. Before it is locked, another server
// that looks for what is stale may remove it.
func makeClaim(base string) (c *Claimed, err error) {
	for range 10 {
		var suffix [4]byte
		_, _ = rand.Read(suffix[:]) // never fails
		path := filepath.Join(base, fmt.Sprintf("exec-server-%d-%x", os.Getpid(), suffix))
		if err := sys.Mkdir(path, 0o755); err != nil {
			return nil, &os.PathError{Op: "make control group", Path: path, Err: err}
		}
		if c, err = Open(path); err == nil {
			return c, nil
		}
	}
	return nil, err
}

// supported checks what no file tells. The clone3 call, by which a process is
// started in a group, is missing in old kernels, and containers refuse it with
// ENOSYS, EPERM or anything else. Only a kernel that has looked at the arguments
// says EINVAL, for they have no size.
func supported() error {
	if _, _, errno := unix.RawSyscall(unix.SYS_CLONE3, 0, 0, 0); errno != unix.EINVAL {
		return fmt.Errorf("the kernel, or a filter of system calls, does not let this program start processes in control groups: %w",
			os.NewSyscallError("clone3", errno))
	}
	return nil
}

// current finds the directory of the group that this program runs in; root
// tells that it is the root of the hierarchy as far as this program can see.
func current() (path string, root bool, err error) {
	text, err := sys.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", false, err
	}
	group, ok := "", false
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); found {
			group, ok = rest, true
		}
	}
	if !ok {
		return "", false, errors.New("this program is in no control group of version 2")
	}
	mounts, err := sys.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", false, err
	}
	for line := range strings.Lines(string(mounts)) {
		front, back, _ := strings.Cut(line, " - ")
		fields := strings.Fields(front)
		if len(fields) < 5 || !strings.HasPrefix(back, "cgroup2 ") {
			continue
		}
		mounted, point := unescape(fields[3]), unescape(fields[4])
		rest, below := strings.CutPrefix(group, strings.TrimSuffix(mounted, "/"))
		if below && (rest == "" || rest[0] == '/') {
			return filepath.Join(point, rest), group == "/", nil
		}
	}
	return "", false, fmt.Errorf("no hierarchy of control groups (version 2) is mounted that holds %q", group)
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	for _, c := range []string{" ", "\t", "\n", `\`} {
		s = strings.ReplaceAll(s, fmt.Sprintf(`\%03o`, c[0]), c)
	}
	return s
}

// Open opens a directory that another process of the same server has claimed.
func Open(path string) (*Claimed, error) {
	fd, err := sys.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open control group", Path: path, Err: err}
	}
	// Shared: the server and its keeper both hold it. Nobody else does for long.
	for err = unix.EINTR; err == unix.EINTR; {
		err = sys.Flock(fd, unix.LOCK_SH)
	}
	if err == nil {
		_, err = sys.Stat(path)
	}
	if err != nil {
		_ = sys.Close(fd)
		return nil, fmt.Errorf("lock control group %s: %w", path, err)
	}
	return &Claimed{path: path, lock: fd}, nil
}

// populate makes the groups of a new claim.
func (c *Claimed) populate(base string, root bool, controllers []string) error {
	if _, err := sys.Stat(filepath.Join(c.path, "cgroup.kill")); err != nil {
		return fmt.Errorf("the kernel cannot kill control groups as a whole: %w", err)
	}
	if root || delegated(base) {
		c.enableIn(base, controllers)
	}
	for _, path := range []string{c.path, c.groups(), c.kept()} {
		if path != c.path {
			if err := sys.Mkdir(path, 0o755); err != nil {
				return &os.PathError{Op: "make control group", Path: path, Err: err}
			}
		}
		for _, name := range controllers {
			_ = enable(path, name)
		}
	}
	return nil
}

func (c *Claimed) groups() string { return filepath.Join(c.path, "processes") }
func (c *Claimed) kept() string   { return filepath.Join(c.path, "kept") }
func (c *Claimed) server() string { return filepath.Join(c.path, "server") }

// delegated reports whether the group was handed over to this program: by its
// owner, or by the mark that service managers set.
func delegated(path string) bool {
	var st unix.Stat_t
	if unix.Stat(path, &st) == nil && os.Geteuid() != 0 && int(st.Uid) == os.Geteuid() {
		return true
	}
	var value [8]byte
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		if n, err := sys.Getxattr(path, name, value[:]); err == nil && string(value[:n]) == "1" {
			return true
		}
	}
	return false
}

// enableIn enables controllers for the groups below base. But for the root of
// all, a group that does so must hold no processes: if this program is the only
// one in it, it moves.
func (c *Claimed) enableIn(base string, controllers []string) {
	available, enabled := words(base, "cgroup.controllers"), words(base, "cgroup.subtree_control")
	missing := slices.DeleteFunc(slices.Clone(controllers), func(name string) bool {
		return !slices.Contains(available, name) || slices.Contains(enabled, name)
	})
	if len(missing) == 0 {
		return
	}
	// The root has no type. Elsewhere the kernel would let some controllers be
	// enabled although there are processes, and then refuse any in the groups
	// below.
	if !isRoot(base) && c.moveServer(base) != nil {
		return
	}
	for _, name := range missing {
		_ = enable(base, name) // those that are not there are missed when a limit needs them
	}
	if isRoot(base) {
		noteEnabled(base, missing)
	}
}

// words reads a file that is a list of words.
func words(path, name string) []string {
	text, err := sys.ReadFile(filepath.Join(path, name))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}

func enable(path, controller string) error {
	return sys.WriteFile(filepath.Join(path, "cgroup.subtree_control"), []byte("+"+controller), 0)
}

// moveServer moves this program out of base.
func (c *Claimed) moveServer(base string) error {
	self := strconv.Itoa(os.Getpid())
	if others := words(base, "cgroup.procs"); !slices.Equal(others, []string{self}) {
		return fmt.Errorf("%s holds other processes: %v", base, others)
	}
	if err := sys.Mkdir(c.server(), 0o755); err != nil {
		return err
	}
	return sys.WriteFile(filepath.Join(c.server(), "cgroup.procs"), []byte(self), 0)
}

// Path is the directory, for Open.
func (c *Claimed) Path() string { return c.path }

// Fd is the descriptor that holds the lock; it belongs to c.
func (c *Claimed) Fd() int { return c.lock }

// Controllers are those that the groups of processes have.
func (c *Claimed) Controllers() []string {
	return words(c.groups(), "cgroup.subtree_control")
}

// Make makes a group for a process; kept is one that survives KillAll. No two
// groups of this program have the same path, whatever becomes of the first one.
func (c *Claimed) Make(kept bool) (*Group, error) {
	name := strconv.FormatUint(c.made.Add(1), 10)
	if kept {
		return makeGroup(filepath.Join(c.kept(), name))
	}
	return makeGroup(filepath.Join(c.groups(), name))
}

// KillAll kills everything in the groups of processes.
func (c *Claimed) KillAll() error {
	return sys.WriteFile(filepath.Join(c.groups(), "cgroup.kill"), []byte("1"), 0)
}

// Remove removes what nothing runs in any more. This program moves back where
// it came from, if it had to make room.
func (c *Claimed) Remove() {
	for _, path := range []string{c.groups(), c.kept()} {
		below, _ := groupsBelow(path)
		for _, b := range below {
			_ = remove(b) // of a kept daemon, it stays
		}
		_ = sys.Rmdir(path)
	}
	if _, err := sys.Stat(c.server()); err == nil {
		c.moveBack()
	}
	_ = sys.Rmdir(c.path)
	restoreRoot(filepath.Dir(c.path))
	c.unlock.Do(func() { _ = sys.Close(c.lock) })
}

// moveBack undoes moveServer and enableIn as far as it can: a group with
// controllers for those below takes no processes, neither this one nor a server
// that is started there later. What is kept loses its limits by that.
func (c *Claimed) moveBack() {
	base := filepath.Dir(c.path)
	for _, path := range []string{c.groups(), c.kept(), c.path, base} {
		for _, name := range words(path, "cgroup.subtree_control") {
			_ = sys.WriteFile(filepath.Join(path, "cgroup.subtree_control"), []byte("-"+name), 0)
		}
	}
	_ = sys.WriteFile(filepath.Join(base, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
	_ = sys.Rmdir(c.server())
}

// removeStale removes the claims whose servers have been killed. A server that
// lives holds a lock on its own.
func removeStale(base string) {
	below, _ := groupsBelow(base)
	for _, path := range below {
		if !claimName.MatchString(filepath.Base(path)) {
			continue
		}
		fd, err := sys.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if sys.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = remove(path)
		}
		_ = sys.Close(fd)
	}
}
