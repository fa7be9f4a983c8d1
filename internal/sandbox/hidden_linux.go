package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"execserver/internal/sandbox/launcher"
	"execserver/protocol"
)

// kernelFiles disclose what the kernel knows about the whole machine: keys, memory,
// timers, firmware. Root may read them without any capability.
var kernelFiles = []string{
	"/proc/kcore", "/proc/key-users", "/proc/keys", "/proc/kmsg", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags",
	"/proc/latency_stats", "/proc/pagetypeinfo", "/proc/sched_debug", "/proc/slabinfo", "/proc/timer_list", "/proc/timer_stats",
	"/proc/vmallocinfo",
	"/sys/devices/virtual/powercap", "/sys/firmware", "/sys/fs/pstore", "/sys/kernel/debug", "/sys/kernel/tracing",
}

// hiddenKernel hides the kernelFiles that the rules would make readable.
func (r *resolver) hiddenKernel() (mounts []launcher.Mount) {
	for _, path := range kernelFiles {
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

// hideState denies the state directory, whatever the policy says. A link on the way is no
// reason to refuse: the link's present target is hidden.
func (r *resolver) hideState(dir string) {
	if w := r.walk(dir); dir != "" && w.err == nil && !w.missing {
		r.add(w.real, protocol.AccessDeny)
	}
}

// keepFiles denies files that decide who may connect, or at least denies writing them,
// whatever the policy says. It refuses a policy under which a command could change a link
// on the way, because the server would then read another file.
func (r *resolver) keepFiles(paths []string, access protocol.Access) error {
	for _, path := range paths {
		w := r.walk(path)
		for _, link := range w.links {
			if r.access(filepath.Dir(link.Path)) == protocol.AccessWrite {
				return fmt.Errorf("cannot protect %s, by which the server knows its clients, because it crosses writable symlink %s; "+
					"start the server with the path that this leads to", path, link.Path)
			}
		}
		switch {
		case w.err != nil, w.missing:
		case access == protocol.AccessDeny:
			r.add(w.real, protocol.AccessDeny)
		case r.access(w.real) == protocol.AccessWrite:
			r.add(w.real, access)
			r.rules[r.index[w.real]].access = access // even if an entry grants more
		}
	}
	return nil
}

// hideDirectories denies directories, unless they lead to something that the policy
// grants or to the directory in which the command starts.
func (r *resolver) hideDirectories(dirs []string, cwds ...string) {
	var used []string
	for _, cwd := range cwds {
		if cwd != "" {
			used = append(used, r.walk(cwd).real)
		}
	}
	for _, rule := range r.rules {
		if rule.access == protocol.AccessRead || rule.access == protocol.AccessWrite {
			used = append(used, rule.path)
		}
	}
	for _, dir := range dirs {
		leads := slices.ContainsFunc(used, func(path string) bool { return within(path, dir) })
		if w := r.walk(dir); !leads && w.err == nil && !w.missing && w.real == dir {
			r.add(dir, protocol.AccessDeny)
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
	hidden := realPaths(e.opts.Secrets)
	if e.state.dir != "" {
		hidden = append(hidden, e.state.dir)
	}
	for _, secret := range hidden {
		if real, err := filepath.EvalSymlinks(secret); err == nil && within(path, real) {
			return true
		}
	}
	if slices.ContainsFunc(e.state.secrets.directories(), func(dir string) bool { return within(path, dir) }) {
		return true
	}
	return slices.ContainsFunc(kernelFiles, func(file string) bool { return within(path, file) })
}

// realPaths returns the paths, and the present targets of links among them.
func realPaths(paths func() []string) (real []string) {
	if paths == nil {
		return nil
	}
	for _, path := range paths() {
		absolute, err := filepath.Abs(path)
		if err != nil {
			continue
		}
		real = append(real, absolute)
		if target, err := filepath.EvalSymlinks(absolute); err == nil && target != absolute {
			real = append(real, target)
		}
	}
	return real
}
