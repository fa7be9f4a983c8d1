package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"execserver/internal/sandbox/launcher"
	"execserver/protocol"
)

// kernelFiles tell what the kernel knows of the whole machine: of keys, memory,
// timers, firmware. Root may read them without any capability.
var kernelFiles = []string{
	"/proc/kcore", "/proc/key-users", "/proc/keys", "/proc/kmsg", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags",
	"/proc/latency_stats", "/proc/pagetypeinfo", "/proc/sched_debug", "/proc/slabinfo", "/proc/timer_list", "/proc/timer_stats",
	"/proc/vmallocinfo",
	"/sys/devices/virtual/powercap", "/sys/firmware", "/sys/fs/pstore", "/sys/kernel/debug", "/sys/kernel/tracing",
}

// hiddenKernel hides the kernelFiles that the rules would let be read.
func (r *resolver) hiddenKernel() (mounts []launcher.Mount) {
	for _, path := range kernelFiles {
		switch access := r.access(path); {
		case access == protocol.AccessDeny:
			continue
		case access == 0 && !within(path, "/proc"): // of which every sandbox has one
			continue
		case unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK, unix.AT_EACCESS) != nil:
			continue // nobody inside has more rights
		}
		m := launcher.Mount{Path: path, Kind: launcher.MountHidden}
		if identify(&m) == nil {
			mounts = append(mounts, m)
		}
	}
	return mounts
}

// hideAlways denies paths whatever the policy says of them. A link on the way is
// no reason to refuse: what it leads to now is hidden.
func (r *resolver) hideAlways(paths []string) {
	for _, path := range paths {
		if w := r.walk(path); w.err == nil && !w.missing {
			r.add(w.real, protocol.AccessDeny)
		}
	}
}

// Hides reports whether an open file is one that a sandbox hides whatever its
// policy says. It looks at what was opened: a path may lead elsewhere by now.
func (e *Engine) Hides(f *os.File) bool {
	if e.opts.Mode == ModeOff {
		return false
	}
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	if err != nil {
		return true // nobody can tell
	}
	for _, secret := range e.state.secrets {
		if real, err := filepath.EvalSymlinks(secret); err == nil && within(path, real) {
			return true
		}
	}
	return slices.ContainsFunc(kernelFiles, func(file string) bool { return within(path, file) })
}

// realPaths are the paths themselves and those that their links lead to now.
func realPaths(paths []string) (real []string) {
	for _, path := range paths {
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
