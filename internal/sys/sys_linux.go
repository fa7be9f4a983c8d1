package sys

import (
	"golang.org/x/sys/unix"

	"execserver/internal/fault"
)

// Openat is unix.Openat.
func Openat(dir int, path string, flags int, perm uint32) (int, error) {
	if err := fault.At("openat"); err != nil {
		return -1, err
	}
	return own(unix.Openat(dir, path, flags, perm))
}

// Pipe2 is unix.Pipe2.
func Pipe2(ends []int, flags int) error {
	if err := fault.At("pipe"); err != nil {
		return err
	}
	err := unix.Pipe2(ends, flags)
	if err == nil {
		fault.Own(ends[0])
		fault.Own(ends[1])
	}
	return err
}

// PidfdOpen is unix.PidfdOpen.
func PidfdOpen(pid, flags int) (int, error) {
	if err := fault.At("pidfd_open"); err != nil {
		return -1, err
	}
	return own(unix.PidfdOpen(pid, flags))
}

// PidfdSendSignal is unix.PidfdSendSignal.
func PidfdSendSignal(pidfd int, sig unix.Signal, info *unix.Siginfo, flags int) error {
	if err := fault.At("pidfd_send_signal"); err != nil {
		return err
	}
	return unix.PidfdSendSignal(pidfd, sig, info, flags)
}

// Prlimit is unix.Prlimit.
func Prlimit(pid, resource int, new, old *unix.Rlimit) error {
	if err := fault.At("prlimit"); err != nil {
		return err
	}
	return unix.Prlimit(pid, resource, new, old)
}

// Prctl is unix.Prctl.
func Prctl(option int, a, b, c, d uintptr) error {
	if err := fault.At("prctl"); err != nil {
		return err
	}
	return unix.Prctl(option, a, b, c, d)
}

// Waitid is unix.Waitid.
func Waitid(kind, id int, info *unix.Siginfo, options int, usage *unix.Rusage) error {
	if err := fault.At("waitid"); err != nil {
		return err
	}
	return unix.Waitid(kind, id, info, options, usage)
}

// IoctlSetPointerInt is unix.IoctlSetPointerInt.
func IoctlSetPointerInt(fd int, request uint, value int) error {
	if err := fault.At("ioctl"); err != nil {
		return err
	}
	return unix.IoctlSetPointerInt(fd, request, value)
}

// IoctlGetUint32 is unix.IoctlGetUint32.
func IoctlGetUint32(fd int, request uint) (uint32, error) {
	if err := fault.At("ioctl"); err != nil {
		return 0, err
	}
	return unix.IoctlGetUint32(fd, request)
}

// Mkdir is unix.Mkdir.
func Mkdir(path string, mode uint32) error {
	if err := fault.At("mkdir"); err != nil {
		return err
	}
	return unix.Mkdir(path, mode)
}

// Rmdir is unix.Rmdir.
func Rmdir(path string) error {
	if err := fault.At("rmdir"); err != nil {
		return err
	}
	return unix.Rmdir(path)
}

// Flock is unix.Flock.
func Flock(fd, how int) error {
	if err := fault.At("flock"); err != nil {
		return err
	}
	return unix.Flock(fd, how)
}

// Getxattr is unix.Getxattr.
func Getxattr(path, name string, value []byte) (int, error) {
	if err := fault.At("getxattr"); err != nil {
		return -1, err
	}
	return unix.Getxattr(path, name, value)
}

// ReadDirent is unix.ReadDirent.
func ReadDirent(fd int, b []byte) (int, error) {
	if err := fault.At("getdents"); err != nil {
		return -1, err
	}
	return unix.ReadDirent(fd, b)
}

// Socketpair is unix.Socketpair.
func Socketpair(domain, kind, protocol int) (pair [2]int, err error) {
	if err := fault.At("socketpair"); err != nil {
		return pair, err
	}
	pair, err = unix.Socketpair(domain, kind, protocol)
	if err == nil {
		fault.Own(pair[0])
		fault.Own(pair[1])
	}
	return pair, err
}

// Fstatat is unix.Fstatat.
func Fstatat(dir int, path string, st *unix.Stat_t, flags int) error {
	if err := fault.At("fstat"); err != nil {
		return err
	}
	return unix.Fstatat(dir, path, st, flags)
}

// Statx is unix.Statx.
func Statx(dir int, path string, flags, mask int, st *unix.Statx_t) error {
	if err := fault.At("statx"); err != nil {
		return err
	}
	return unix.Statx(dir, path, flags, mask, st)
}

// Fchown is unix.Fchown.
func Fchown(fd, uid, gid int) error {
	if err := fault.At("chown"); err != nil {
		return err
	}
	return unix.Fchown(fd, uid, gid)
}

// Fchmod is unix.Fchmod.
func Fchmod(fd int, mode uint32) error {
	if err := fault.At("chmod"); err != nil {
		return err
	}
	return unix.Fchmod(fd, mode)
}

// Fchmodat is unix.Fchmodat.
func Fchmodat(dir int, path string, mode uint32, flags int) error {
	if err := fault.At("chmod"); err != nil {
		return err
	}
	return unix.Fchmodat(dir, path, mode, flags)
}

// UtimesNanoAt is unix.UtimesNanoAt.
func UtimesNanoAt(dir int, path string, ts []unix.Timespec, flags int) error {
	if err := fault.At("utimensat"); err != nil {
		return err
	}
	return unix.UtimesNanoAt(dir, path, ts, flags)
}

// Symlinkat is unix.Symlinkat.
func Symlinkat(target string, dir int, path string) error {
	if err := fault.At("symlink"); err != nil {
		return err
	}
	return unix.Symlinkat(target, dir, path)
}

// Readlinkat is unix.Readlinkat.
func Readlinkat(dir int, path string, b []byte) (int, error) {
	if err := fault.At("readlink"); err != nil {
		return -1, err
	}
	return unix.Readlinkat(dir, path, b)
}

// Fsetxattr is unix.Fsetxattr.
func Fsetxattr(fd int, name string, value []byte, flags int) error {
	if err := fault.At("setxattr"); err != nil {
		return err
	}
	return unix.Fsetxattr(fd, name, value, flags)
}

// Fremovexattr is unix.Fremovexattr.
func Fremovexattr(fd int, name string) error {
	if err := fault.At("removexattr"); err != nil {
		return err
	}
	return unix.Fremovexattr(fd, name)
}

// Flistxattr is unix.Flistxattr.
func Flistxattr(fd int, b []byte) (int, error) {
	if err := fault.At("listxattr"); err != nil {
		return -1, err
	}
	return unix.Flistxattr(fd, b)
}

// Fgetxattr is unix.Fgetxattr.
func Fgetxattr(fd int, name string, b []byte) (int, error) {
	if err := fault.At("getxattr"); err != nil {
		return -1, err
	}
	return unix.Fgetxattr(fd, name, b)
}

// Seek is unix.Seek.
func Seek(fd int, offset int64, whence int) (int64, error) {
	if err := fault.At("seek"); err != nil {
		return -1, err
	}
	return unix.Seek(fd, offset, whence)
}

// Ftruncate is unix.Ftruncate.
func Ftruncate(fd int, size int64) error {
	if err := fault.At("truncate"); err != nil {
		return err
	}
	return unix.Ftruncate(fd, size)
}

// Fallocate is unix.Fallocate.
func Fallocate(fd int, mode uint32, offset, size int64) error {
	if err := fault.At("fallocate"); err != nil {
		return err
	}
	return unix.Fallocate(fd, mode, offset, size)
}

// Mkdirat is unix.Mkdirat.
func Mkdirat(dir int, path string, mode uint32) error {
	if err := fault.At("mkdir"); err != nil {
		return err
	}
	return unix.Mkdirat(dir, path, mode)
}

// Unlinkat is unix.Unlinkat.
func Unlinkat(dir int, path string, flags int) error {
	if err := fault.At("unlink"); err != nil {
		return err
	}
	return unix.Unlinkat(dir, path, flags)
}

// Renameat2 is unix.Renameat2.
func Renameat2(dir int, path string, toDir int, to string, flags uint) error {
	if err := fault.At("rename"); err != nil {
		return err
	}
	return unix.Renameat2(dir, path, toDir, to, flags)
}

// Dup returns a close-on-exec copy of a descriptor.
func Dup(fd int) (int, error) {
	if err := fault.At("dup"); err != nil {
		return -1, err
	}
	return own(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0))
}

// EpollCreate1 is unix.EpollCreate1.
func EpollCreate1(flags int) (int, error) {
	if err := fault.At("epoll_create"); err != nil {
		return -1, err
	}
	return own(unix.EpollCreate1(flags))
}

// EpollCtl is unix.EpollCtl.
func EpollCtl(epoll, op, fd int, event *unix.EpollEvent) error {
	if err := fault.At("epoll_ctl"); err != nil {
		return err
	}
	return unix.EpollCtl(epoll, op, fd, event)
}

// InotifyInit1 is unix.InotifyInit1.
func InotifyInit1(flags int) (int, error) {
	if err := fault.At("inotify_init"); err != nil {
		return -1, err
	}
	return own(unix.InotifyInit1(flags))
}

// InotifyAddWatch is unix.InotifyAddWatch.
func InotifyAddWatch(fd int, path string, mask uint32) (int, error) {
	if err := fault.At("inotify_add_watch"); err != nil {
		return -1, err
	}
	return unix.InotifyAddWatch(fd, path, mask)
}

// Sendmsg is unix.Sendmsg.
func Sendmsg(fd int, b, oob []byte, to unix.Sockaddr, flags int) error {
	if err := fault.At("sendmsg"); err != nil {
		return err
	}
	return unix.Sendmsg(fd, b, oob, to, flags)
}

// ReserveSpace allocates space for size bytes in a file without changing its size. It
// returns an error only if there is not enough space, and none if the file system cannot
// allocate in advance.
func ReserveSpace(fd int, size int64) error {
	for size > 0 {
		switch err := Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, size); err {
		case unix.EINTR:
			continue
		case unix.ENOSPC, unix.EDQUOT, unix.EFBIG:
			return err
		}
		break
	}
	return nil
}

// pipeBytes is how much a pipe to or from a server holds, if the system allows it: the most
// that an ordinary user may ask for.
const pipeBytes = 1 << 20

// EnlargePipe enlarges the buffer of a pipe, so that a program that forwards bulk data
// neither waits nor wakes the reader for every piece. If that fails, or file is not a pipe,
// it does nothing.
func EnlargePipe(file any) {
	_ = OnDescriptor(file, func(fd int) error {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeBytes)
		return err
	})
}
