package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// Group is one control group that this program has created. It holds no descriptor, and
// no other group of this program ever has its path. So its methods may be called
// concurrently, any number of times, and after the group is gone; then there is nothing
// to kill and nothing to remove.
type Group struct {
	path string
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

// gone reports whether err means that the group has been removed.
func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) }

// Kill sends SIGKILL to every process in the group and in groups below, with those that
// are being forked meanwhile.
func (g *Group) Kill() error {
	if err := g.Set("cgroup.kill", "1"); !gone(err) {
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
	if gone(err) {
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
	if gone(err) {
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

// Remove removes the group, and groups below that its processes have created. While a
// process runs there it fails with EBUSY and removes nothing.
func (g *Group) Remove() error { return remove(g.path) }

func remove(path string) error {
	err := sys.Rmdir(path)
	if errors.Is(err, unix.EBUSY) {
		err = removeBelow(path)
	}
	if err != nil && !gone(err) {
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
