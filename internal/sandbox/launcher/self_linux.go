package launcher

import "golang.org/x/sys/unix"

// Self is the Program of a Spec that means this one.
const Self = "/proc/self/exe"

// SelfInside is where it is in the new /dev.
const SelfInside = "/dev/.exec-server"

// cloneSelf copies the mount of this program, to be read. A program is a way to
// the mount that it was executed from, also for itself, by /proc/self/exe; and
// that of the launcher is the machine's, where it may be written. -1 when there
// is another program at its path by now.
func cloneSelf() tree {
	var b [unix.PathMax]byte
	n, err := unix.Readlink(Self, b[:])
	if err != nil {
		return -1
	}
	var st unix.Stat_t
	if err := unix.Stat(Self, &st); err != nil {
		return -1
	}
	t, err := cloneChecked(Mount{Path: string(b[:n]), Kind: MountReadOnly, Device: uint64(st.Dev), Inode: st.Ino})
	if err != nil {
		return -1
	}
	return t
}

// attachSelf makes the copy what is executed.
func (v *view) attachSelf() *failure {
	if v.self < 0 {
		return nil
	}
	const path = newRoot + SelfInside
	err := makeFile(unix.AT_FDCWD, path, 0o444)
	if err == nil {
		err = v.self.attachAt(path)
	}
	if err != nil {
		return &failure{"take this program along", err}
	}
	v.spec.Program = SelfInside
	return nil
}
