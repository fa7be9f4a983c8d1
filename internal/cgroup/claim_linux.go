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

	"execserver/internal/procfs"
	"execserver/internal/sys"
)

// Claimed is the directory in the control group hierarchy that a server owns. It
// contains:
//
//	processes/  a group for every process, killed when the server ends
//	server      the server itself, if it had to move
type Claimed struct {
	path string
	made atomic.Uint64 // number of process groups created

	lock   int // descriptor of the directory, locked while the server or its supervisor uses it
	unlock sync.Once
}

// Claim creates such a directory below the group of this program. It enables those of the
// controllers that it can. If the group was delegated to this program, these are all
// available ones; then this program moves itself to a group below, because the kernel
// demands that. Otherwise they are the controllers that are enabled for groups below
// already. Claim also removes the groups that killed servers left behind.
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

// claimName matches the names of claimed directories: a process id and a random number.
// Its first use compiles it, so that the helpers in sandboxes, which are this program too,
// do not pay for it.
var claimName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^exec-server-[0-9]+-[0-9a-f]{8}$`) })

// makeClaim creates the directory of a claim. Until it is locked, another server that
// removes stale claims may remove it.
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

// supported checks whether a process can be started in a group, which no file reveals. It
// needs clone3. Old kernels lack it, and containers refuse it with ENOSYS, EPERM or another
// error. Only a kernel that examines the arguments returns EINVAL, because their size is
// zero.
func supported() error {
	if _, _, errno := unix.RawSyscall(unix.SYS_CLONE3, 0, 0, 0); errno != unix.EINVAL {
		return fmt.Errorf("the kernel, or a filter of system calls, does not let this program start processes in control groups: %w",
			os.NewSyscallError("clone3", errno))
	}
	return nil
}

// current returns the directory of the group of this program. root reports whether it is
// the root of the hierarchy as far as this program can see.
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
	mounts, err := procfs.Mounts()
	if err != nil {
		return "", false, err
	}
	dir, _, ok := directoryOf(group, mounts, func(m procfs.Mount) bool { return m.Type == "cgroup2" })
	if !ok {
		return "", false, fmt.Errorf("no hierarchy of control groups (version 2) is mounted that holds %q", group)
	}
	return dir, group == "/", nil
}

// directoryOf returns the directory of a group in the first mount of the hierarchy that
// has it, and where that is mounted.
func directoryOf(group string, mounts []procfs.Mount, inHierarchy func(procfs.Mount) bool) (dir, point string, ok bool) {
	for _, m := range mounts {
		rest, below := strings.CutPrefix(group, strings.TrimSuffix(m.Root, "/"))
		if inHierarchy(m) && below && (rest == "" || rest[0] == '/') {
			return filepath.Join(m.Point, rest), m.Point, true
		}
	}
	return "", "", false
}

// Open opens a directory that another process of the same server has claimed.
func Open(path string) (*Claimed, error) {
	fd, err := sys.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open control group", Path: path, Err: err}
	}
	// The lock is shared, because the server and its supervisor both hold it. No other
	// process holds it for long.
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

// populate creates the groups of a new claim.
func (c *Claimed) populate(base string, root bool, controllers []string) error {
	if _, err := sys.Stat(filepath.Join(c.path, "cgroup.kill")); err != nil {
		return fmt.Errorf("the kernel cannot kill control groups as a whole: %w", err)
	}
	if root || delegated(base) {
		c.enableIn(base, controllers)
	}
	for _, path := range []string{c.path, c.groups()} {
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
func (c *Claimed) server() string { return filepath.Join(c.path, "server") }

// delegated reports whether the group was delegated to this program: by its owner, or by
// the extended attribute that service managers set.
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

// enableIn enables controllers for the groups below base. Except for the root of the
// hierarchy, such a group must hold no processes: if this program is the only one in it,
// it moves.
func (c *Claimed) enableIn(base string, controllers []string) {
	available, enabled := words(base, "cgroup.controllers"), words(base, "cgroup.subtree_control")
	missing := slices.DeleteFunc(slices.Clone(controllers), func(name string) bool {
		return !slices.Contains(available, name) || slices.Contains(enabled, name)
	})
	if len(missing) == 0 {
		return
	}
	// The root has no type. In another group that still holds processes, the kernel would
	// enable some controllers and then refuse processes in the groups below.
	if !isRoot(base) && c.moveServer(base) != nil {
		return
	}
	for _, name := range missing {
		_ = enable(base, name) // a limit that needs a missing controller reports it
	}
	if isRoot(base) {
		noteEnabled(base, missing)
	}
}

// words returns the words of a file that holds a list.
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

// Path returns the directory, for Open.
func (c *Claimed) Path() string { return c.path }

// Fd returns the descriptor that holds the lock. It belongs to c.
func (c *Claimed) Fd() int { return c.lock }

// Controllers returns the controllers of the groups of processes.
func (c *Claimed) Controllers() []string {
	return words(c.groups(), "cgroup.subtree_control")
}

// KillAll kills everything in the groups of processes.
func (c *Claimed) KillAll() error {
	return sys.WriteFile(filepath.Join(c.groups(), "cgroup.kill"), []byte("1"), 0)
}

// Remove removes the empty groups. If this program had to move, it moves back.
func (c *Claimed) Remove() {
	below, _ := groupsBelow(c.groups())
	for _, b := range below {
		_ = remove(b) // one in which something cannot be killed stays
	}
	_ = sys.Rmdir(c.groups())
	if _, err := sys.Stat(c.server()); err == nil {
		c.moveBack()
	}
	_ = sys.Rmdir(c.path)
	restoreRoot(filepath.Dir(c.path))
	c.unlock.Do(func() { _ = sys.Close(c.lock) })
}

// moveBack undoes moveServer and enableIn as far as possible: a group with controllers
// enabled for its children accepts no processes, neither this one nor a later server.
func (c *Claimed) moveBack() {
	base := filepath.Dir(c.path)
	for _, path := range []string{c.groups(), c.path, base} {
		for _, name := range words(path, "cgroup.subtree_control") {
			_ = sys.WriteFile(filepath.Join(path, "cgroup.subtree_control"), []byte("-"+name), 0)
		}
	}
	_ = sys.WriteFile(filepath.Join(base, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
	_ = sys.Rmdir(c.server())
}

// removeStale removes the claims of killed servers. A live server holds a lock on its own
// claim.
func removeStale(base string) {
	below, _ := groupsBelow(base)
	for _, path := range below {
		if !claimName().MatchString(filepath.Base(path)) {
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

// isRoot reports whether a group is the root of the hierarchy. The root has no type, and
// may have both processes and controllers enabled for its children.
func isRoot(path string) bool {
	_, err := sys.Stat(filepath.Join(path, "cgroup.type"))
	return errors.Is(err, os.ErrNotExist)
}

// enabledAttribute of the root lists the controllers that servers have enabled in it. It
// outlives a killed server; the next server to end disables them.
const enabledAttribute = "user.exec-server.controllers"

// noteEnabled adds controllers to the list.
func noteEnabled(root string, names []string) {
	list := append(enabledByServers(root), names...)
	slices.Sort(list)
	_ = unix.Setxattr(root, enabledAttribute, []byte(strings.Join(slices.Compact(list), " ")), 0) // without it they stay enabled
}

func enabledByServers(root string) []string {
	var value [512]byte
	n, err := sys.Getxattr(root, enabledAttribute, value[:])
	if err != nil {
		return nil
	}
	return strings.Fields(string(value[:n]))
}

// restoreRoot disables the controllers that servers have enabled in the root. The last
// server does so, unless the root contains another program's group, whose limits may depend
// on the controllers.
func restoreRoot(base string) {
	if !isRoot(base) {
		return
	}
	names := enabledByServers(base)
	below, err := groupsBelow(base)
	if len(names) == 0 || err != nil || len(below) > 0 {
		return
	}
	for _, name := range names {
		_ = sys.WriteFile(filepath.Join(base, "cgroup.subtree_control"), []byte("-"+name), 0)
	}
	_ = unix.Removexattr(base, enabledAttribute)
}
