package peer_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"execserver/internal/peer"
	"execserver/internal/testkit"
)

// TestMain lets the test program run as a client of itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "connect" {
		connect(os.Args[2], os.Args[3])
		return
	}
	if len(os.Args) == 2 && os.Args[1] == "chain" {
		chain()
		return
	}
	os.Exit(m.Run())
}

// chain runs confined processes, each of which starts the next one and ends, until the end of its
// input.
func chain() {
	runtime.LockOSThread()
	signal.Ignore(unix.SIGCHLD) // so that none remains a zombie
	filter := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
	program := unix.SockFprog{Len: 1, Filter: &filter}
	if err := errors.Join(unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), unix.SetNonblock(0, true)); err != nil {
		fmt.Println(err)
		return
	}
	var input [1]byte
	started := []byte("started\n")
	fork := func() uintptr {
		pid, _, _ := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		return pid
	}
	if fork() == 0 { // where no Go code may run but this
		unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
		unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0, 0)
		unix.RawSyscall(unix.SYS_WRITE, 1, uintptr(unsafe.Pointer(&started[0])), uintptr(len(started)))
		for {
			_, _, errno := unix.RawSyscall(unix.SYS_READ, 0, uintptr(unsafe.Pointer(&input)), 1)
			if errno == 0 || fork() != 0 {
				unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
		}
	}
	_, _ = unix.Wait4(-1, nil, 0, nil) // for all of them
}

// connect connects, calls then, and ends at the end of its input.
func connect(address, then string) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if then == "close" {
		_ = conn.Close()
	}
	fmt.Println("connected")
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = conn.Close()
}

// accepted returns the server's end of a connection that a process of a user has made.
func accepted(t *testing.T, uid int, then string) net.Conn {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	program, err := os.Open("/proc/self/exe") // other users may not enter its directory
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	cmd := exec.Command("/proc/self/fd/3", "connect", listener.Addr().String(), then)
	cmd.ExtraFiles = []*os.File{program}
	if uid != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	stdin, stdout := testkit.StartPiped(t, cmd)
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "connected\n" {
		t.Fatalf("the client says %q, %v", line, err)
	}
	return conn
}

// TestHolderIsTheParent checks that a child that has inherited a socket is not named as
// its holder: drain would take what a server is just starting for the server.
func TestHolderIsTheParent(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", "(read end </dev/fd/4) & echo started; wait")
	wait, release, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer wait.Close()
	cmd.ExtraFiles = []*os.File{file, wait}
	_, stdout := testkit.StartPiped(t, cmd)
	_, _ = file.Close(), listener.Close() // or this program is the parent that holds it
	t.Cleanup(func() {
		_ = release.Close()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "started\n" {
		t.Fatalf("the shell says %q, %v", line, err)
	}
	if pid, ok := new(peer.Holders).PID(peer.Socket{UID: os.Geteuid(), Inode: info.Sys().(*syscall.Stat_t).Ino}); !ok || pid != cmd.Process.Pid {
		t.Errorf("the holder is %d, %v, want %d", pid, ok, cmd.Process.Pid)
	}
}

func find(conn net.Conn) (peer.Socket, error) {
	return peer.FindTCP(conn.LocalAddr().(*net.TCPAddr).AddrPort(), conn.RemoteAddr().(*net.TCPAddr).AddrPort())
}

func TestOwner(t *testing.T) {
	users := []int{os.Geteuid()}
	if os.Geteuid() == 0 {
		users = append(users, 61234)
	}
	for _, uid := range users {
		found, err := find(accepted(t, uid, "hold"))
		if err != nil || found.UID != uid || found.Orphaned() {
			t.Errorf("user %d: %+v, %v", uid, found, err)
		}
	}
}

// TestOrphan checks that a socket without a holder has no known owner, although the kernel
// reports root.
func TestOrphan(t *testing.T) {
	conn := accepted(t, os.Geteuid(), "close")
	found, err := find(conn)
	if err != nil || !found.Orphaned() {
		t.Errorf("%+v, %v", found, err)
	}
}

// TestFamilies covers all ways in which two sockets of this machine can be connected.
func TestFamilies(t *testing.T) {
	for _, test := range []struct {
		name, listen, dial string
		multipath          bool
	}{
		{"IPv4", "127.0.0.1:0", "127.0.0.1", false},
		{"another address of loopback", "127.9.9.9:0", "127.9.9.9", false},
		{"IPv6", "[::1]:0", "::1", false},
		{"all addresses, by IPv4", "[::]:0", "127.0.0.1", false},
		{"all addresses, by IPv6", "[::]:0", "::1", false},
		{"all addresses, by a mapped one", "[::]:0", "::ffff:127.0.0.1", false},
		{"multipath", "127.0.0.1:0", "127.0.0.1", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var config net.ListenConfig
			config.SetMultipathTCP(test.multipath)
			listener, err := config.Listen(t.Context(), "tcp", test.listen)
			if err != nil {
				t.Skip(err)
			}
			defer listener.Close()
			var dialer net.Dialer
			dialer.SetMultipathTCP(test.multipath)
			port := listener.Addr().(*net.TCPAddr).Port
			near, err := dialer.DialContext(context.Background(), "tcp", netip.AddrPortFrom(netip.MustParseAddr(test.dial), uint16(port)).String())
			if err != nil {
				t.Fatal(err)
			}
			defer near.Close()
			far, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer far.Close()
			found, err := find(far)
			if err != nil || found.UID != os.Geteuid() || found.Inode != inode(t, near) {
				t.Errorf("%+v, %v; its inode is %d", found, err, inode(t, near))
			}
		})
	}
}

func inode(t *testing.T, conn net.Conn) uint64 {
	t.Helper()
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	_ = raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &st) })
	if err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// TestNotFound checks that a listener on the port of a vanished peer does not pass for
// the peer.
func TestNotFound(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	near := listener.Addr().(*net.TCPAddr).AddrPort()
	found, err := peer.FindTCP(netip.MustParseAddrPort("127.0.0.1:1"), near)
	if err != peer.ErrNotFound {
		t.Errorf("%+v, %v", found, err)
	}
}

// TestHolder checks that Holders finds the process that holds a socket among many.
func TestHolder(t *testing.T) {
	conn := accepted(t, os.Geteuid(), "hold")
	found, err := find(conn)
	if err != nil {
		t.Fatal(err)
	}
	var holders peer.Holders
	for range 2 { // the second time the process is known
		if pid, ok := holders.PID(found); !ok || pid == os.Getpid() {
			t.Errorf("%d, %v; this is %d", pid, ok, os.Getpid())
		}
	}
	if pid, ok := holders.PID(peer.Socket{UID: os.Geteuid(), Inode: 1}); ok {
		t.Errorf("the process %d holds what does not exist", pid)
	}
}
