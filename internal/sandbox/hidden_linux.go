package sandbox

import (
	"path/filepath"

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
