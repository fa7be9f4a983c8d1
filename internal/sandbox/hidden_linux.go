package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
	"execserver/internal/sandbox/launcher"
	"execserver/protocol"
)

// hideState denies directories of this program's state and configuration, whatever the
// policy grants. Unlike protectFiles it does not refuse links: it hides their present
// targets. With Landlock alone it also hides missing ones, because makeOwnDirectories does not
// make them.
func (r *resolver) hideState(dirs []string) {
	for _, dir := range dirs {
		switch w := r.walk(dir); {
		case w.err != nil || w.real == "/":
		case !w.missing:
			r.denyEverywhere(w.real)
		case r.landlock:
			r.hide(w.real)
		}
	}
}

// makeOwnDirectories creates missing directories of this user, so that sandboxes can hide
// them: otherwise a running command could read their content when they appear, or create them
// itself. It skips those whose nearest existing parent belongs to another user.
func makeOwnDirectories(dirs []string) {
	for _, dir := range dirs {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		around := filepath.Dir(dir)
		for !isDir(around) && around != "/" {
			around = filepath.Dir(around)
		}
		if around != "/" && isOwnDirectory(around) {
			_ = os.MkdirAll(dir, 0o700) // a file system may be read-only
		}
	}
}

func (r *resolver) denyEverywhere(path string) {
	for _, name := range r.mounts.names(path) {
		r.hide(name)
	}
}

// hide denies a path. Landlock alone cannot mount anything over it, but leave it out of what it
// allows to read.
func (r *resolver) hide(path string) {
	if r.landlock {
		r.closed = append(r.closed, path)
		return
	}
	r.add(path, protocol.AccessDeny)
}

// protectFiles denies files that decide who may connect, or at least denies writing them,
// whatever the policy grants, at all of their paths. It refuses a policy under which a
// command could change a link on the way, because the server would then read another file.
func (r *resolver) protectFiles(paths []string, access protocol.Access) error {
	for _, path := range paths {
		w := r.walk(path)
		for _, link := range w.links {
			if r.writableAnywhere(filepath.Dir(link.Path)) {
				return fmt.Errorf("cannot protect %s, by which the server knows its clients, because it crosses writable symlink %s; "+
					"start the server with the path that this leads to", path, link.Path)
			}
		}
		switch {
		case w.err == nil && w.missing && r.landlock && access == protocol.AccessDeny:
			r.hide(w.real) // it may appear
		case w.err != nil, w.missing:
		case access == protocol.AccessDeny:
			if err := checkOnlyName(w.real); err != nil {
				return err
			}
			r.denyEverywhere(w.real)
		default:
			for _, name := range r.mounts.names(w.real) {
				if r.access(name) == protocol.AccessWrite {
					r.add(name, access)
					r.rules[r.index[name]].access = access // even if an entry grants more
				}
			}
		}
	}
	return nil
}

// checkMissing refuses a policy under which a command could create a file that decides who
// may connect.
func (r *resolver) checkMissing(paths []string) error {
	for _, path := range paths {
		w := r.walk(path)
		if w.err != nil || !w.missing || within(w.real, "/proc") || within(w.real, "/dev") {
			continue // every sandbox has its own /proc and /dev
		}
		if r.writableAnywhere(filepath.Dir(w.real)) {
			return fmt.Errorf("cannot protect %s, by which the server knows its clients, because %s does not exist, and the command could "+
				"create it; create it first, or give the server a path in a directory that commands do not write", path, w.real)
		}
	}
	return nil
}

// writableAnywhere reports whether a command may write in a directory by any of its names.
func (r *resolver) writableAnywhere(dir string) bool {
	return slices.ContainsFunc(r.mounts.names(dir), func(name string) bool { return r.access(name) == protocol.AccessWrite })
}

// CheckSecrets reports whether sandboxes can hide files. A file with several hard links
// cannot be hidden, because the other names are unknown.
func CheckSecrets(paths []string) error {
	for _, path := range absolutePaths(paths) {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			if err := checkOnlyName(real); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkOnlyName(path string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink <= 1 {
		return nil
	}
	return fmt.Errorf("hide %[1]s from commands in sandboxes: the file has %[2]d names (hard links), and only this one is known; "+
		"remove the others, or replace it with a copy: cp -p %[1]s %[1]s.new && mv %[1]s.new %[1]s", path, st.Nlink)
}

// hideDirectories denies directories, unless they lead to something that the policy
// grants or to the directory in which the command starts.
func (r *resolver) hideDirectories(dirs []string, cwds ...string) {
	used := r.grants()
	for _, cwd := range cwds {
		if cwd != "" {
			used = append(used, r.walk(cwd).real)
		}
	}
	for _, dir := range dirs {
		if w := r.walk(dir); w.err != nil || w.missing || w.real != dir {
			continue
		}
		for _, name := range r.mounts.names(dir) {
			if !containsAny(name, used) {
				r.hide(name)
			}
		}
	}
}

// Hides reports whether an open file is one that every sandbox hides or replaces by its own. It
// decides about the file that is open, because another one may have its path by now, or none. It
// returns true if it cannot tell.
func (e *Engine) Hides(f *os.File) bool {
	if e.opts.Mode == ModeOff {
		return false
	}
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	if err != nil {
		return true
	}
	file, err := statxOpen(f)
	if err != nil {
		return true
	}
	// The kernel adds this to the path that a file had before it was removed or replaced, as when
	// a secret is rotated. What the path was says nothing any more.
	if strings.HasSuffix(path, " (deleted)") && !isSame(path, file) {
		return true
	}
	mounts, err := readMounts()
	if err != nil {
		return true
	}
	mount := mounts.mountOf(path, file)
	if mount == nil { // it has been unmounted, and the path begins at its root
		return true
	}
	// Every sandbox has a /dev of its own.
	hidden := slices.Concat(realPaths(e.opts.Secrets), mounts.kernelFiles(), mounts.devices())
	for _, dir := range slices.Concat(e.state.dirs, e.state.secrets.directories()) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			hidden = append(hidden, real)
		}
	}
	names := mounts.everyName(path, mount)
	return slices.ContainsFunc(hidden, func(secret string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return within(name, secret) })
	})
}

// realPaths returns the paths and the targets of links among them. It resolves a path both
// cleaned and uncleaned, because cleaning removes a link that is followed by "..".
func realPaths(paths func() []string) (real []string) {
	if paths == nil {
		return nil
	}
	add := func(path string) {
		if !slices.Contains(real, path) {
			real = append(real, path)
		}
	}
	for _, path := range paths() {
		absolute, err := filepath.Abs(path)
		if err != nil {
			continue
		}
		if !filepath.IsAbs(path) {
			path = absolute
		}
		for _, name := range []string{absolute, path} {
			add(name)
			if target, err := filepath.EvalSymlinks(name); err == nil {
				add(target)
			}
		}
	}
	return real
}

// The kernel shows its own state as files, and lets root change it without any capability.
// The launcher mounts a new /proc and /dev and protects /sys. But the same file systems may
// also be mounted elsewhere, as in the root directory of a build.

// kernelTypes are the types of those file systems.
var kernelTypes = []string{
	"proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "selinuxfs", "smackfs", "configfs", "pstore",
	"efivarfs", "bpf", "binfmt_misc", "resctrl", "fusectl", "nfsd", "rpc_pipefs", "xenfs", "devtmpfs", "devpts", "mqueue",
}

// kernelFiles disclose state of the whole machine: keys, memory, timers, firmware. Root may
// read them without any capability.
var kernelFiles = []string{
	"/proc/kcore", "/proc/key-users", "/proc/keys", "/proc/kmsg", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags",
	"/proc/latency_stats", "/proc/pagetypeinfo", "/proc/sched_debug", "/proc/slabinfo", "/proc/timer_list", "/proc/timer_stats",
	"/proc/vmallocinfo",
	"/sys/devices/virtual/powercap", "/sys/firmware", "/sys/fs/pstore", "/sys/kernel/debug", "/sys/kernel/tracing",
}

// kernelElsewhere returns the mounts of the kernel's file systems outside of /proc, /sys and
// /dev. It leaves out mounts that others cover.
func (t *mountTable) kernelElsewhere() (found []*procfs.Mount) {
	for i := range t.list {
		m := &t.list[i]
		if !slices.Contains(kernelTypes, m.Type) || inOneOf(m.Point, "/proc", "/sys", "/dev") {
			continue
		}
		if file, err := statx(m.Point); err == nil && (!hasMountID(file) || file.Mnt_id == m.ID) {
			found = append(found, m)
		}
	}
	return found
}

// inOneOf reports whether a path is in one of the directories.
func inOneOf(path string, dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool { return within(path, dir) })
}

// kernelFiles returns the kernelFiles at all of their paths.
func (t *mountTable) kernelFiles() []string {
	files := slices.Clone(kernelFiles)
	for _, m := range t.kernelElsewhere() {
		switch m.Type {
		case "proc", "debugfs", "tracefs", "pstore", "efivarfs":
			files = append(files, m.Point)
		case "sysfs":
			for _, file := range kernelFiles {
				if !within(file, "/sys") {
					continue
				}
				switch real := below(file, "/sys"); {
				case within(real, m.Root):
					files = append(files, join(m.Point, below(real, m.Root)))
				case within(m.Root, real):
					files = append(files, m.Point)
				}
			}
		}
	}
	return files
}

// devices returns the directories that hold the machine's devices.
func (t *mountTable) devices() []string {
	dirs := []string{"/dev"}
	for _, m := range t.kernelElsewhere() {
		if m.Type == "devtmpfs" || m.Type == "devpts" {
			dirs = append(dirs, m.Point)
		}
	}
	return dirs
}

// protectKernel makes other mounts of the kernel's file systems read-only where the policy
// makes their parent directory writable; an entry for the mount itself takes precedence. It
// hides those that hold only kernelFiles, and other mounts of /proc, whatever the policy
// grants: they also show the processes outside, and the sandbox has its own.
func (r *resolver) protectKernel() {
	hidden := r.mounts.kernelFiles()
	for _, m := range r.mounts.kernelElsewhere() {
		switch {
		case slices.Contains(hidden, m.Point):
			r.add(m.Point, protocol.AccessDeny)
		case r.access(m.Point) == protocol.AccessWrite && !r.has(m.Point):
			r.add(m.Point, protocol.AccessRead)
		}
	}
}

// hiddenKernel hides the kernel's files that the rules would make readable.
func (r *resolver) hiddenKernel() (mounts []launcher.Mount) {
	for _, path := range r.mounts.kernelFiles() {
		switch access := r.access(path); {
		case access == protocol.AccessDeny:
			continue
		case access == 0 && !within(path, "/proc"): // every sandbox has its own /proc
			continue
		case unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK, unix.AT_EACCESS) != nil:
			continue // no process inside has more rights
		}
		m := launcher.Mount{Path: path, Kind: launcher.MountHidden}
		if identify(&m) == nil {
			mounts = append(mounts, m)
		}
	}
	return mounts
}
