package launcher

import "golang.org/x/sys/unix"

// Self is the Program of a Spec that stands for this program.
const Self = "/proc/self/exe"

// SelfInside is the path of this program in the new /dev.
const SelfInside = "/dev/.exec-server"

// cloneSelf copies the mount of this program, read-only. A program can reach the mount
// from which it was executed by /proc/self/exe, and the mount of the launcher is the
// machine's, where the program may be writable. It returns -1 if another program is at
// its path by now.
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

// attachSelf attaches the copy at SelfInside.
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
