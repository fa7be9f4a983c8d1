package sandbox_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attacker makes attempts in a sandbox and prints their outcomes.
type attacker struct {
	base        string // of the machine
	ws, outside string
	socket      string // of a daemon
	datagrams   string // of another
	abstract    string // of a third
	serverPid   int
	port        int // of a listener on the machine's loopback
}

// attack is the program that the tests start in the sandbox.
func attack(args []string) {
	runtime.LockOSThread()
	base := args[1]
	a := attacker{
		base: base, ws: filepath.Join(base, "ws"), outside: filepath.Join(base, "outside"),
		socket: filepath.Join(base, "socket"), datagrams: filepath.Join(base, "datagrams"), abstract: filepath.Base(base),
	}
	a.serverPid, _ = strconv.Atoi(args[2])
	a.port, _ = strconv.Atoi(args[3])
	for _, attempt := range attacks[args[0]] {
		err := attempt.try(&a)
		result := "allowed"
		if errno := syscall.Errno(0); errors.As(err, &errno) {
			result = unix.ErrnoName(errno)
		} else if err != nil {
			result = err.Error()
		}
		fmt.Printf("%s\t%s\n", attempt.name, result)
	}
}

// attempt is one attack and its expected outcome.
type attempt struct {
	name string
	want string // names of errnos, one of which it must be; or "allowed"
	try  func(a *attacker) error
}

func create(path string) error {
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func write(path string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func socket(domain, kind, protocol int) error {
	fd, err := unix.Socket(domain, kind, protocol)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func call(number uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, errno := unix.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
		return errno
	}
	return nil
}

func text(s string) uintptr { return uintptr(unsafe.Pointer(&append([]byte(s), 0)[0])) }

func (a *attacker) out(name string) string { return filepath.Join(a.outside, name) }
func (a *attacker) in(name string) string  { return filepath.Join(a.ws, name) }

// link makes a link in the root and returns its path.
func (a *attacker) link(name, target string) string {
	path := a.in(name)
	_ = os.Remove(path)
	_ = os.Symlink(target, path)
	return path
}

// connect makes a socket and connects it.
func connect(domain, kind int, to unix.Sockaddr) error {
	fd, err := unix.Socket(domain, kind, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, to)
}

// attacks lists the attempts by the network of the sandbox.
var attacks = map[string][]attempt{
	"restricted": slices.Concat(fileAttacks, processAttacks, nestedAttacks, networkAttacks),
	"enabled":    slices.Concat(openNetworkAttacks, nestedAttacks),
	"alone":      noNetworkAttacks,
	"container":  containerAttacks,
	"denied":     deniedAttacks,
	"hidden":     hiddenAttacks,
	"devices":    deviceAttacks,
}

var fileAttacks = []attempt{
	{"0 write inside", "allowed", func(a *attacker) error { return create(a.in("new")) }},
	{"0 rename inside", "allowed", func(a *attacker) error { return os.Rename(a.in("new"), a.in("dir/new")) }},
	{"0 write to /tmp", "allowed", func(a *attacker) error {
		name := fmt.Sprintf("/tmp/exec-server-test-%d-%d", a.serverPid, unix.Getpid())
		defer os.Remove(name)
		return create(name)
	}},
	{"0 write /dev/null", "allowed", func(a *attacker) error { return write("/dev/null") }},
	{"1 create outside", "EROFS", func(a *attacker) error { return create(a.out("new")) }},
	{"1 write outside", "EROFS", func(a *attacker) error { return write(a.out("file")) }},
	{"1 mkdir outside", "EROFS", func(a *attacker) error { return unix.Mkdir(a.out("newdir"), 0o755) }},
	{"2 chmod outside", "EROFS", func(a *attacker) error { return unix.Chmod(a.out("file"), 0o600) }},
	{"2 chown outside", "EROFS", func(a *attacker) error { return unix.Lchown(a.out("file"), os.Getuid(), os.Getgid()) }},
	// These are the same files in every /proc. They keep their modes and owner if an attempt succeeds.
	{"2 chmod in /proc", "EROFS EPERM", func(*attacker) error { return unix.Chmod("/proc/uptime", 0o444) }},
	{"2 chmod the directory of the network in /proc", "EROFS EPERM", func(*attacker) error { return unix.Chmod("/proc/self/net", 0o555) }},
	{"2 chown in /proc", "EROFS EPERM", func(*attacker) error { return unix.Lchown("/proc/uptime", os.Getuid(), os.Getgid()) }},
	{"2 chmod below /proc/acpi", "EROFS EPERM ENOENT", func(*attacker) error { return unix.Chmod("/proc/acpi", 0o555) }},
	{"2 utimes outside", "EROFS", func(a *attacker) error { return unix.Utimes(a.out("file"), make([]unix.Timeval, 2)) }},
	{"2 setxattr outside", "EROFS", func(a *attacker) error { return unix.Setxattr(a.out("file"), "user.x", []byte("x"), 0) }},
	{"3 truncate outside", "EROFS", func(a *attacker) error { return unix.Truncate(a.out("file"), 0) }},
	{"3 unlink outside", "EROFS", func(a *attacker) error { return unix.Unlink(a.out("file")) }},
	{"4 through a link to a directory", "EROFS", func(a *attacker) error { return create(a.link("l1", a.outside) + "/new") }},
	{"4 through a link to a file", "EROFS", func(a *attacker) error { return write(a.link("l2", a.out("file"))) }},
	{"4 through a dangling link", "EROFS", func(a *attacker) error { return create(a.link("l3", a.out("none"))) }},
	{"5 hard link of a file outside", "EXDEV", func(a *attacker) error { return unix.Link(a.out("file"), a.in("hard")) }},
	{"5 hard link of .git/config", "EXDEV", func(a *attacker) error { return unix.Link(a.in(".git/config"), a.in("hard")) }},
	{"6 write .git/config", "EROFS", func(a *attacker) error { return write(a.in(".git/config")) }},
	{"6 create .git/hooks/x", "EROFS", func(a *attacker) error { return create(a.in(".git/hooks/x")) }},
	{"7 rename .git", "EBUSY", func(a *attacker) error { return unix.Rename(a.in(".git"), a.in("git")) }},
	{"8 rename over .git", "EEXIST ENOTEMPTY EBUSY", func(a *attacker) error { return unix.Rename(a.in("dir"), a.in(".git")) }},
	{"8 exchange with .git", "EBUSY", func(a *attacker) error {
		return unix.Renameat2(unix.AT_FDCWD, a.in("dir"), unix.AT_FDCWD, a.in(".git"), unix.RENAME_EXCHANGE)
	}},
	{"9 remove .git", "EROFS", func(a *attacker) error { return os.RemoveAll(a.in(".git")) }},
	{"9 rmdir .git", "EBUSY EROFS ENOTEMPTY", func(a *attacker) error { return unix.Rmdir(a.in(".git")) }},
	{"10 .git through a link", "EROFS", func(a *attacker) error { return create(a.link("l4", ".git") + "/x") }},
	{"11 mkdir .codex", "EROFS EEXIST", func(a *attacker) error { return unix.Mkdir(a.in(".codex"), 0o755) }},
	{"11 create in .codex", "EROFS", func(a *attacker) error { return create(a.in(".codex/x")) }},
	{"11 create .agents", "EROFS EISDIR", func(a *attacker) error { return create(a.in(".agents")) }},
	{"11 link .aws", "EROFS EEXIST", func(a *attacker) error { return unix.Symlink(a.outside, a.in(".aws")) }},
	{"11 rmdir .aws", "EROFS EBUSY", func(a *attacker) error { return unix.Rmdir(a.in(".aws")) }},
	{"11 rename over .aws", "EROFS EBUSY EEXIST ENOTEMPTY", func(a *attacker) error { return unix.Rename(a.in("dir"), a.in(".aws")) }},
	{"14 rename the root", "EROFS EBUSY", func(a *attacker) error { return unix.Rename(a.ws, a.ws+"2") }},
	{"14 remove the root", "EROFS EBUSY", func(a *attacker) error { return unix.Rmdir(a.ws) }},
	{"15 /proc/self/root", "EROFS", func(a *attacker) error { return create("/proc/self/root" + a.out("new")) }},
	{"15 /proc/1/root", "EROFS EACCES", func(a *attacker) error { return create("/proc/1/root" + a.out("new")) }},
	{"15 /proc/1/cwd", "EACCES", func(a *attacker) error { return create("/proc/1/cwd/new") }},
	{"16 lease a file", "EPERM", func(a *attacker) error {
		fd, err := unix.Open(a.in(".git/config"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
		return err
	}},
	{"28 mknod", "EPERM", func(a *attacker) error { return unix.Mknod(a.in("disk"), unix.S_IFBLK|0o666, 0x800) }},
	{"28 other devices", "allowed", func(*attacker) error {
		harmless := "null zero full random urandom tty ptmx pts shm console fd stdin stdout stderr core .exec-server"
		entries, err := os.ReadDir("/dev")
		for _, entry := range entries {
			if !slices.Contains(strings.Fields(harmless), entry.Name()) {
				return fmt.Errorf("there is %s", entry.Name())
			}
		}
		return err
	}},
	{"28 /dev/mem", "ENOENT", func(a *attacker) error { return write("/dev/mem") }},
	{"28 open_by_handle_at", "EPERM", func(a *attacker) error {
		handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, a.in("file"), 0)
		if err != nil {
			return unix.EPERM // this file system has none
		}
		fd, err := unix.Open("/", unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = unix.OpenByHandleAt(fd, handle, unix.O_RDONLY)
		return err
	}},
}

// procFiles are files that the attacker tries to write. Missing ones do not count.
func procFile(path string) func(*attacker) error {
	return func(*attacker) error {
		if _, err := os.Lstat(path); errors.Is(err, unix.ENOENT) {
			return unix.EROFS
		}
		return write(path)
	}
}

var processAttacks = []attempt{
	{"16 root of a process outside", "ENOENT EACCES EPERM", func(a *attacker) error {
		return create(fmt.Sprintf("/proc/%d/root%s", a.serverPid, a.out("new")))
	}},
	{"16 see a process outside", "ENOENT", func(a *attacker) error {
		_, err := os.Lstat(fmt.Sprintf("/proc/%d/stat", a.serverPid))
		return err
	}},
	{"16 signal a process outside", "ESRCH", func(a *attacker) error { return unix.Kill(a.serverPid, 0) }},
	{"17 ptrace", "EPERM ESRCH", func(a *attacker) error { return unix.PtraceAttach(a.serverPid) }},
	{"17 process_vm_readv", "EPERM ESRCH", func(a *attacker) error {
		b := make([]byte, 8)
		local := []unix.Iovec{{Base: &b[0], Len: 8}}
		_, err := unix.ProcessVMReadv(a.serverPid, local, []unix.RemoteIovec{{Base: 4096, Len: 8}}, 0)
		return err
	}},
	{"17 ptrace a thread of process 1", "EPERM ESRCH", func(a *attacker) error {
		threads, err := os.ReadDir("/proc/1/task")
		for _, thread := range threads {
			tid, _ := strconv.Atoi(thread.Name())
			if err = unix.PtraceAttach(tid); err == nil {
				return nil
			}
		}
		return err
	}},
	{"17 memory of a thread of process 1", "EACCES EROFS", func(a *attacker) error {
		memory, err := filepath.Glob("/proc/1/task/*/mem")
		for _, path := range memory {
			if err = write(path); err == nil {
				return nil
			}
		}
		return err
	}},
	{"17 limits of process 1", "EPERM", func(*attacker) error {
		return unix.Prlimit(1, unix.RLIMIT_CORE, &unix.Rlimit{}, nil)
	}},
	{"17 own limits", "allowed", func(*attacker) error { return unix.Prlimit(0, unix.RLIMIT_CORE, &unix.Rlimit{}, nil) }},
	{"18 open /proc/1/exe", "EACCES", func(a *attacker) error { return write("/proc/1/exe") }},
	{"18 chmod /proc/1/exe", "EACCES", func(a *attacker) error { return unix.Chmod("/proc/1/exe", 0o777) }},
	{"18 utimes of /proc/1/exe", "EACCES", func(a *attacker) error { return unix.Utimes("/proc/1/exe", make([]unix.Timeval, 2)) }},
	{"18 list /proc/1/fd", "EACCES", func(a *attacker) error {
		// The superuser may see their numbers.
		list, err := os.ReadDir("/proc/1/fd")
		for _, entry := range list {
			_, err = os.Readlink("/proc/1/fd/" + entry.Name())
		}
		return err
	}},
	{"18 open /proc/1/mem", "EACCES EROFS", func(a *attacker) error { return write("/proc/1/mem") }},
	{"18 environment of process 1", "EACCES", func(a *attacker) error {
		_, err := os.ReadFile("/proc/1/environ")
		return err
	}},
	{"19 core_pattern", "EROFS EACCES", procFile("/proc/sys/kernel/core_pattern")},
	{"19 hostname", "EROFS EACCES", procFile("/proc/sys/kernel/hostname")},
	{"19 drop_caches", "EROFS EACCES", procFile("/proc/sys/vm/drop_caches")},
	{"20 sysrq-trigger", "EROFS EACCES", procFile("/proc/sysrq-trigger")},
	{"20 /sys", "EROFS EACCES", procFile("/sys/power/state")},
	{"20 uevent", "EROFS EACCES", procFile("/sys/kernel/uevent_helper")},
	{"20 control group", "EROFS EACCES ENOENT", func(a *attacker) error { return unix.Mkdir("/sys/fs/cgroup/exec-server-test", 0o755) }},
	{"20 keys", "EACCES ENOENT", func(*attacker) error { return read("/proc/keys") }},
	{"20 users of keys", "EACCES ENOENT", func(*attacker) error { return read("/proc/key-users") }},
	{"20 timers", "EACCES ENOENT", func(*attacker) error { return read("/proc/timer_list") }},
	{"20 memory in use", "EACCES ENOENT", func(*attacker) error { return read("/proc/slabinfo") }},
	{"20 pages", "EACCES ENOENT", func(*attacker) error { return read("/proc/kpageflags") }},
	{"20 firmware", "EACCES ENOENT", func(*attacker) error { return list("/sys/firmware") }},
	{"20 change the mode of firmware", "EACCES ENOENT EROFS", func(*attacker) error { return unix.Chmod("/sys/firmware", 0o755) }},
	{"25 io_uring_setup", "EPERM", func(a *attacker) error { return call(unix.SYS_IO_URING_SETUP, 1, text(string(make([]byte, 120)))) }},
	{"25 io_setup", "ENOSYS", ioSetup},
	{"27 unshare of mounts", "EPERM", func(a *attacker) error { return unix.Unshare(unix.CLONE_NEWNS) }},
	{"27 mount", "EPERM", func(a *attacker) error { return unix.Mount("tmpfs", a.in("dir"), "tmpfs", 0, "") }},
	{"27 umount .git", "EPERM", func(a *attacker) error { return unix.Unmount(a.in(".git"), unix.MNT_DETACH) }},
	{"27 remount", "EPERM", func(a *attacker) error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") }},
	{"27 mount_setattr", "EPERM", func(a *attacker) error {
		return unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
	}},
	{"27 chroot", "EPERM", func(a *attacker) error { return unix.Chroot(a.ws) }},
	{"27 pivot_root", "EPERM", func(a *attacker) error { return unix.PivotRoot(".", ".") }},
	{"29 keyctl", "EPERM", func(a *attacker) error { return call(unix.SYS_KEYCTL, 0, ^uintptr(2), 1) }},
	{"29 bpf", "EPERM", func(a *attacker) error { return call(unix.SYS_BPF, 0, text(string(make([]byte, 128))), 120) }},
	{"29 perf_event_open", "EPERM", func(a *attacker) error {
		return call(unix.SYS_PERF_EVENT_OPEN, text(string(make([]byte, 128))), 0, ^uintptr(0), ^uintptr(0))
	}},
	{"29 userfaultfd", "EPERM", func(a *attacker) error { return call(unix.SYS_USERFAULTFD, 0) }},
	{"30 TIOCSTI", "EPERM", func(a *attacker) error { return call(unix.SYS_IOCTL, 0, unix.TIOCSTI, text("x")) }},
	{"30 TIOCSTI with upper bits", "EPERM", func(a *attacker) error {
		return call(unix.SYS_IOCTL, 0, unix.TIOCSTI|1<<40, text("x"))
	}},
	{"30 TIOCLINUX", "EPERM", func(a *attacker) error { return call(unix.SYS_IOCTL, 0, unix.TIOCLINUX, text("\x02")) }},
	{"30 TIOCEXCL", "EPERM", func(a *attacker) error { return call(unix.SYS_IOCTL, 0, unix.TIOCEXCL) }},
	{"30 TIOCSETD", "EPERM", func(a *attacker) error { return call(unix.SYS_IOCTL, 0, unix.TIOCSETD, text("\x1b\x00\x00\x00")) }},
	{"30 /dev/tty without a terminal", "ENXIO", func(*attacker) error {
		if _, err := unix.IoctlGetTermios(0, unix.TCGETS); err == nil {
			return unix.ENXIO // there is one
		}
		return write("/dev/tty")
	}},
	{"31 other descriptors", "allowed", func(a *attacker) error {
		own, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(own)
		for fd := 3; fd < 1024; fd++ {
			link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
			if err != nil || fd == own {
				continue
			}
			// Go's own are another kind.
			if !strings.HasPrefix(link, "anon_inode:") && !strings.HasPrefix(link, "/sys/fs/cgroup/") && !strings.HasPrefix(link, "/proc/") {
				return fmt.Errorf("descriptor %d is %s", fd, link)
			}
		}
		return nil
	}},
	{"32 no_new_privs", "allowed", func(a *attacker) error {
		if set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || set != 1 {
			return fmt.Errorf("%d, %v", set, err)
		}
		return nil
	}},
	{"32 capabilities", "allowed", func(a *attacker) error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capget(&header, &data[0]); err != nil || data != [2]unix.CapUserData{} {
			return fmt.Errorf("%+v, %v", data, err)
		}
		for capability := range uintptr(unix.CAP_LAST_CAP + 1) {
			if set, _ := unix.PrctlRetInt(unix.PR_CAPBSET_READ, capability, 0, 0, 0); set == 1 {
				return fmt.Errorf("capability %d may be gained", capability)
			}
		}
		return nil
	}},
}

// noNetworkAttacks are attempts in a sandbox that leaves no sockets.
var noNetworkAttacks = []attempt{
	{"21 TCP", "EPERM", func(a *attacker) error { return socket(unix.AF_INET, unix.SOCK_STREAM, 0) }},
	{"21 TCP 6", "EPERM", func(a *attacker) error { return socket(unix.AF_INET6, unix.SOCK_STREAM, 0) }},
	{"21 UDP", "EPERM", func(a *attacker) error { return socket(unix.AF_INET, unix.SOCK_DGRAM, 0) }},
	{"21 raw", "EPERM", func(a *attacker) error { return socket(unix.AF_INET, unix.SOCK_RAW, 1) }},
	{"22 descriptor of another process", "EPERM", func(a *attacker) error { return call(unix.SYS_PIDFD_GETFD, ^uintptr(0), 0, 0) }},
	{"22 memory of the server", "EACCES old", func(a *attacker) error {
		abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
		if errno != 0 || abi < 4 {
			return errors.New("old") // the kernel cannot keep it from that
		}
		return write(fmt.Sprintf("/proc/%d/mem", a.serverPid))
	}},
}

// networkAttacks are attempts in a sandbox with a network namespace of its own.
var networkAttacks = []attempt{
	{"21 TCP on its own loopback", "allowed", func(*attacker) error { return talk("tcp", "127.0.0.1:0") }},
	{"21 TCP 6 on its own loopback", "allowed EADDRNOTAVAIL EAFNOSUPPORT", func(*attacker) error { return talk("tcp", "[::1]:0") }},
	{"21 UDP on its own loopback", "allowed", func(*attacker) error { return talk("udp", "127.0.0.1:0") }},
	{"21 port of the machine", "ECONNREFUSED", func(a *attacker) error {
		return connect(unix.AF_INET, unix.SOCK_STREAM, &unix.SockaddrInet4{Port: a.port, Addr: [4]byte{127, 0, 0, 1}})
	}},
	{"21 TCP to elsewhere", "ENETUNREACH", func(a *attacker) error {
		return connect(unix.AF_INET, unix.SOCK_STREAM, &unix.SockaddrInet4{Port: 80, Addr: [4]byte{192, 0, 2, 1}})
	}},
	{"21 UDP to elsewhere", "ENETUNREACH", func(a *attacker) error {
		return connect(unix.AF_INET, unix.SOCK_DGRAM, &unix.SockaddrInet4{Port: 53, Addr: [4]byte{192, 0, 2, 1}})
	}},
	{"21 other interfaces", "allowed", func(*attacker) error {
		text, err := os.ReadFile("/proc/self/net/dev")
		if n := strings.Count(string(text), ":"); err == nil && n != 1 {
			return fmt.Errorf("%d interfaces", n)
		}
		return err
	}},
	{"21 namespace of another process", "ENOENT EACCES EPERM", func(a *attacker) error {
		return read(fmt.Sprintf("/proc/%d/ns/net", a.serverPid))
	}},
	{"21 change an interface", "EPERM", func(*attacker) error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		request, err := unix.NewIfreq("lo")
		if err != nil {
			return err
		}
		return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
	}},
	{"21 raw", "EPERM", func(a *attacker) error { return socket(unix.AF_INET, unix.SOCK_RAW, 1) }},
	{"21 netlink", "EPERM", func(a *attacker) error { return socket(unix.AF_NETLINK, unix.SOCK_RAW, 0) }},
	{"21 vsock", "EPERM", func(a *attacker) error { return socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0) }},
	{"21 packet", "EPERM", func(a *attacker) error { return socket(unix.AF_PACKET, unix.SOCK_RAW, 0) }},
	{"22 unix socket", "EPERM", func(*attacker) error { return socket(unix.AF_UNIX, unix.SOCK_STREAM, 0) }},
	{"22 pair to a daemon", "EISCONN EINVAL ENOENT", func(a *attacker) error {
		return onPair(func(fd int) error { return unix.Connect(fd, &unix.SockaddrUnix{Name: a.socket}) })
	}},
	{"22 pair that listens", "EINVAL", func(a *attacker) error {
		return onPair(func(fd int) error { return unix.Listen(fd, 1) })
	}},
	{"22 pair that disconnects", "EINVAL", func(a *attacker) error {
		return onPair(func(fd int) error {
			none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
			return call(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none))
		})
	}},
	{"22 packet with an address", "EPIPE", func(a *attacker) error {
		return onPairOf(unix.SOCK_SEQPACKET, func(fd int) error {
			return unix.Sendto(fd, []byte("x"), unix.MSG_NOSIGNAL, &unix.SockaddrUnix{Name: a.datagrams})
		})
	}},
	{"22 pair of datagrams", "EPERM", func(a *attacker) error {
		_, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		return err
	}},
	{"22 pair of another family", "EPERM", func(a *attacker) error {
		_, err := unix.Socketpair(unix.AF_TIPC, unix.SOCK_STREAM, 0)
		return err
	}},
	{"22 descriptor of another process", "EPERM", func(a *attacker) error { return call(unix.SYS_PIDFD_GETFD, ^uintptr(0), 0, 0) }},
	{"22 socket of a daemon", "EPERM", func(a *attacker) error {
		return connect(unix.AF_UNIX, unix.SOCK_STREAM, &unix.SockaddrUnix{Name: a.socket})
	}},
	{"22 abstract socket", "EPERM", func(a *attacker) error {
		return connect(unix.AF_UNIX, unix.SOCK_STREAM, &unix.SockaddrUnix{Name: "@" + a.abstract})
	}},
	{"22 datagram to a daemon", "EPERM", func(a *attacker) error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrUnix{Name: a.socket})
	}},
	{"22 datagram with an address of its own", "EPERM", func(a *attacker) error {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		return unix.Sendmsg(pair[0], []byte("x"), nil, &unix.SockaddrUnix{Name: a.datagrams}, 0)
	}},
	{"24 socketpair", "allowed", func(a *attacker) error {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err == nil {
			_, err = unix.Write(pair[0], []byte("x"))
		}
		return err
	}},
}

// openNetworkAttacks are attempts in a sandbox with a network.
var openNetworkAttacks = []attempt{
	{"0 connect to the machine", "allowed", func(a *attacker) error {
		return connect(unix.AF_INET, unix.SOCK_STREAM, &unix.SockaddrInet4{Port: a.port, Addr: [4]byte{127, 0, 0, 1}})
	}},
	{"1 create outside", "EROFS", func(a *attacker) error { return create(a.out("new")) }},
	{"23 abstract socket", "EPERM old", func(a *attacker) error {
		abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
		if errno != 0 || abi < 6 {
			return errors.New("old") // the kernel cannot keep it from that
		}
		return connect(unix.AF_UNIX, unix.SOCK_STREAM, &unix.SockaddrUnix{Name: "@" + a.abstract})
	}},
	{"21 UDP", "allowed", func(*attacker) error { return socket(unix.AF_INET, unix.SOCK_DGRAM, 0) }},
	{"21 TCP 6", "allowed EAFNOSUPPORT", func(*attacker) error { return socket(unix.AF_INET6, unix.SOCK_STREAM, 0) }},
	{"21 routes", "allowed", func(*attacker) error { return socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE) }},
	{"21 vsock", "EPERM", func(*attacker) error { return socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0) }},
	{"21 packet", "EPERM", func(*attacker) error { return socket(unix.AF_PACKET, unix.SOCK_RAW, 0) }},
	{"21 ciphers of the kernel", "EPERM", func(*attacker) error { return socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0) }},
	{"21 TIPC", "EPERM", func(*attacker) error {
		_, err := unix.Socketpair(unix.AF_TIPC, unix.SOCK_STREAM, 0)
		return err
	}},
	{"25 io_uring_setup", "EPERM", func(a *attacker) error { return call(unix.SYS_IO_URING_SETUP, 1, text(string(make([]byte, 120)))) }},
	{"25 io_setup", "ENOSYS", ioSetup},
	{"30 TIOCSTI", "EPERM", func(a *attacker) error { return call(unix.SYS_IOCTL, 0, unix.TIOCSTI, text("x")) }},
}

// onPair tries something with a stream whose other end is closed.
func onPair(try func(fd int) error) error { return onPairOf(unix.SOCK_STREAM, try) }

func onPairOf(kind int, try func(fd int) error) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make a pair: %v", err)
	}
	defer unix.Close(pair[0])
	unix.Close(pair[1])
	return try(pair[0])
}

// talk sends a byte from one socket to another.
func talk(network, address string) error {
	var from, to net.Conn
	if network == "udp" {
		server, err := net.ListenPacket(network, address)
		if err != nil {
			return err
		}
		defer server.Close()
		if from, err = net.Dial(network, server.LocalAddr().String()); err != nil {
			return err
		}
		to = server.(*net.UDPConn)
	} else {
		server, err := net.Listen(network, address)
		if err != nil {
			return err
		}
		defer server.Close()
		if from, err = net.Dial(network, server.Addr().String()); err != nil {
			return err
		}
		if to, err = server.Accept(); err != nil {
			return err
		}
		defer to.Close()
	}
	defer from.Close()
	if _, err := from.Write([]byte("x")); err != nil {
		return err
	}
	_, err := to.Read(make([]byte, 1))
	return err
}

// ioSetup uses some of the machine's limit of asynchronous I/O requests.
func ioSetup(*attacker) error {
	var room uintptr
	return call(unix.SYS_IO_SETUP, 128, uintptr(unsafe.Pointer(&room)))
}
