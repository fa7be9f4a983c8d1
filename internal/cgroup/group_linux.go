package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
	"execserver/internal/sys"
)

// Group is one control group created by this program. It holds no descriptor, and its path
// is never reused by this program. So its methods may be called concurrently, any number of
// times, and after the group is gone; then Kill and Remove do nothing.
type Group struct {
	path string
}

// MakeGroup creates a group for a process. No two groups of this program have the same path,
// even after the first one is gone.
func (c *Claimed) MakeGroup() (*Group, error) {
	return makeGroup(filepath.Join(c.groups(), strconv.FormatUint(c.made.Add(1), 10)))
}

func makeGroup(path string) (*Group, error) {
	if err := sys.Mkdir(path, 0o755); err != nil {
		return nil, &os.PathError{Op: "make control group", Path: path, Err: err}
	}
	return &Group{path: path}, nil
}

// Open opens the group's directory, to start a process in the group. The caller must
// close it.
func (g *Group) Open() (*os.File, error) {
	fd, err := sys.Open(g.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open control group", Path: g.path, Err: err}
	}
	return sys.NewFile(uintptr(fd), g.path), nil
}

// isGone reports whether err means that the group has been removed.
func isGone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) }

// Kill sends SIGKILL to every process in the group and in groups below, with those that
// are being forked meanwhile.
func (g *Group) Kill() error {
	if err := g.Set("cgroup.kill", "1"); !isGone(err) {
		return err
	}
	return nil
}

// Set writes a file of the group.
func (g *Group) Set(name, value string) error {
	path := filepath.Join(g.path, name)
	fd, err := sys.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = sys.Write(fd, []byte(value))
		_ = sys.Close(fd)
	}
	if err != nil {
		return fmt.Errorf("write %q to %s: %w", value, path, err)
	}
	return nil
}

// Populated reports whether a process runs in the group or in groups below.
func (g *Group) Populated() (bool, error) {
	n, err := g.event("cgroup.events", "populated")
	if isGone(err) {
		return false, nil
	}
	return n != 0, err
}

// OOMKills returns how many processes of the group the kernel has killed for lack of
// memory. It fails without the memory controller.
func (g *Group) OOMKills() (int, error) { return g.event("memory.events", "oom_kill") }

// CPU returns the processor time that the group's processes have used, also those that
// have ended.
func (g *Group) CPU() (time.Duration, error) {
	n, err := g.event("cpu.stat", "usage_usec")
	return time.Duration(n) * time.Microsecond, err
}

// event reads one number from a file of lines with a name and a number.
func (g *Group) event(file, name string) (int, error) {
	text, err := sys.ReadFile(filepath.Join(g.path, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && key == name {
			return strconv.Atoi(value)
		}
	}
	return 0, fmt.Errorf("%s has no %q", filepath.Join(g.path, file), name)
}

// Processes lists the processes in the group and in groups below.
func (g *Group) Processes() ([]int, error) {
	pids, err := processesOf(g.path)
	if isGone(err) {
		return pids, nil
	}
	return pids, err
}

func processesOf(path string) ([]int, error) {
	text, err := sys.ReadFile(filepath.Join(path, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, word := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			return pids, err
		}
		pids = append(pids, pid)
	}
	below, err := groupsBelow(path)
	for _, path := range below {
		more, err := processesOf(path)
		if err == nil {
			pids = append(pids, more...)
		}
	}
	return pids, err
}

func groupsBelow(path string) ([]string, error) {
	entries, err := sys.ReadDir(path)
	var groups []string
	for _, e := range entries {
		if e.IsDir() {
			groups = append(groups, filepath.Join(path, e.Name()))
		}
	}
	return groups, err
}

// Remove removes the group and the groups that its processes have created below it. While a
// process runs in them it fails with EBUSY and removes nothing.
func (g *Group) Remove() error { return remove(g.path) }

func remove(path string) error {
	err := sys.Rmdir(path)
	if errors.Is(err, unix.EBUSY) {
		err = removeBelow(path)
	}
	if err != nil && !isGone(err) {
		return &os.PathError{Op: "remove control group", Path: path, Err: err}
	}
	return nil
}

// removeBelow removes a group that has groups below, unless a process runs in them. That
// process may be another server, which needs its empty groups.
func removeBelow(path string) error {
	if populated, err := (&Group{path: path}).Populated(); err != nil || populated {
		return errors.Join(unix.EBUSY, err)
	}
	below, err := groupsBelow(path)
	if err != nil {
		return err
	}
	for _, b := range below {
		if err := remove(b); err != nil {
			return err
		}
	}
	return sys.Rmdir(path)
}

// PidsAvailable returns how many more processes and threads the control groups of this
// program allow. It returns false if they are not limited.
func PidsAvailable() (left uint64, limited bool) {
	for _, dir := range pidsGroups() {
		most, err := readNumber(filepath.Join(dir, "pids.max"))
		if err != nil {
			continue // "max", or the root of the hierarchy
		}
		current, err := readNumber(filepath.Join(dir, "pids.current"))
		if err != nil {
			continue
		}
		here := most - min(current, most)
		if !limited || here < left {
			left, limited = here, true
		}
	}
	return left, limited
}

func readNumber(path string) (uint64, error) {
	text, err := sys.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}

// pidsGroups are the directories of the group in which this program was started and of
// those above it, in the hierarchy that counts processes, of either version.
var pidsGroups = sync.OnceValue(func() (dirs []string) {
	groups, err := sys.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	mounts, err := procfs.Mounts()
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(groups)) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, group, _ := strings.Cut(rest, ":")
		kind := "cgroup2"
		if controllers != "" {
			if kind = "cgroup"; !listed("pids", controllers) {
				continue
			}
		}
		dir, point, ok := directoryOf(group, mounts, func(m procfs.Mount) bool {
			return m.Type == kind && (kind == "cgroup2" || listed("pids", m.Options))
		})
		for ; ok; dir = filepath.Dir(dir) {
			dirs = append(dirs, dir)
			if dir == point || dir == "/" {
				break
			}
		}
	}
	return dirs
})

func listed(name, list string) bool { return strings.Contains(","+list+",", ","+name+",") }
