package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"execserver/protocol"
)

// hideState denies directories of this program's state and configuration, whatever the
// policy says. A link on the way is no reason to refuse: the link's present target is
// hidden.
func (r *resolver) hideState(dirs []string) {
	for _, dir := range dirs {
		if w := r.walk(dir); w.err == nil && !w.missing && w.real != "/" {
			r.denyEverywhere(w.real)
		}
	}
}

// makeOwn makes missing directories of this user, so that sandboxes can hide them: a command
// that runs already could read what they hold when they appear, or make them itself. Those
// whose nearest existing directory belongs to somebody else stay missing.
func makeOwn(dirs []string) {
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

// stateDirs returns where such directories are, or will be when they are missing.
func (r *resolver) stateDirs(dirs []string) (names []string) {
	for _, dir := range dirs {
		switch w := r.walk(dir); {
		case w.err != nil || w.real == "/":
		case w.missing:
			names = append(names, w.real)
		default:
			names = append(names, r.mounts.names(w.real)...)
		}
	}
	return names
}

func (r *resolver) denyEverywhere(path string) {
	for _, name := range r.mounts.names(path) {
		r.add(name, protocol.AccessDeny)
	}
}

// keepFiles denies files that decide who may connect, or at least denies writing them,
// whatever the policy says and wherever they are mounted. It refuses a policy under which
// a command could change a link on the way, because the server would then read another
// file.
func (r *resolver) keepFiles(paths []string, access protocol.Access) error {
	for _, path := range paths {
		w := r.walk(path)
		for _, link := range w.links {
			if r.writableAnywhere(filepath.Dir(link.Path)) {
				return fmt.Errorf("cannot protect %s, by which the server knows its clients, because it crosses writable symlink %s; "+
					"start the server with the path that this leads to", path, link.Path)
			}
		}
		switch {
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

// CheckSecrets reports whether sandboxes can hide files. A file with several names
// (hard links) cannot be hidden, because nothing tells where the others are.
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
			if !leads(name, used) {
				r.add(name, protocol.AccessDeny)
			}
		}
	}
}

// Hides reports whether an open file is one that a sandbox hides whatever its policy
// says. It examines the open file, because a path may lead elsewhere by now.
func (e *Engine) Hides(f *os.File) bool {
	if e.opts.Mode == ModeOff {
		return false
	}
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	if err != nil {
		return true // unknown, so assume it does
	}
	mounts, err := readMounts()
	if err != nil {
		return true
	}
	hidden := append(realPaths(e.opts.Secrets), mounts.kernelFiles()...)
	for _, dir := range slices.Concat(e.state.dirs, e.state.secrets.directories()) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			hidden = append(hidden, real)
		}
	}
	names := mounts.names(path)
	return slices.ContainsFunc(hidden, func(secret string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return within(name, secret) })
	})
}

// realPaths returns the paths, and the present targets of links among them. A path may lead over
// a link and back by "..", which the kernel follows, and which is gone from a clean path.
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
