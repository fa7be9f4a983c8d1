package sandbox

import (
	"slices"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
	"execserver/internal/sandbox/launcher"
	"execserver/protocol"
)

// The kernel shows its own state as files, and lets root change it without any capability.
// The launcher makes /proc and /dev anew and protects /sys. But the same file systems may be
// mounted anywhere else, as in the root directory of a build.

// kernelTypes are the types of those file systems.
var kernelTypes = []string{
	"proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "selinuxfs", "smackfs", "configfs", "pstore",
	"efivarfs", "bpf", "binfmt_misc", "resctrl", "fusectl", "nfsd", "rpc_pipefs", "xenfs", "devtmpfs", "devpts", "mqueue",
}

// kernelFiles disclose what the kernel knows about the whole machine: keys, memory,
// timers, firmware. Root may read them without any capability.
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
		if file, err := look(m.Point); err == nil && (!numbered(file) || file.Mnt_id == m.ID) {
			found = append(found, m)
		}
	}
	return found
}

// inOneOf reports whether a path is in one of the directories.
func inOneOf(path string, dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool { return within(path, dir) })
}

// kernelFiles returns the kernelFiles, and where else they are.
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
// makes the directory around them writable; an entry for the mount itself decides about it.
// It hides those that hold only kernelFiles, and other mounts of /proc, whatever the policy
// says: they also show the processes outside, and the sandbox has its own.
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
