package testkit

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

func init() {
	children["hostile"] = childHostile
	children["daemon"] = childDaemon
	children["orphans"] = childOrphans
}

// childHostile starts a tree of processes that do everything to escape from the server
// that started it. Its arguments are a word and the role of this process. All processes
// of the tree have the word in their command lines, so that a test finds them.
//
// The leader starts the others and prints "ready". All of them ignore every signal that
// a process can ignore.
func childHostile(args []string) {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE)
	word, role := args[0], "leader"
	if len(args) > 1 {
		role = args[1]
	}
	switch role {
	case "leader":
		for _, role := range []string{"group", "session", "middle", "storm", "run", "both"} {
			startHostile(word, role)
		}
		fmt.Println("ready")
	case "middle", "both": // its child loses its parent; "both" keeps the streams
		startHostile(word, map[string]string{"middle": "daemon", "both": "holder"}[role])
		tellReady()
		os.Exit(0)
	case "daemon": // and it has children, too
		startHostile(word, "session")
		startHostile(word, "group")
	case "storm":
		tellReady()
		storm()
	case "run":
		tellReady()
		run()
	}
	tellReady()
	time.Sleep(time.Hour)
}

// startHostile starts one more process of the tree, and waits until it is ready.
func startHostile(word, role string) {
	self, _ := os.Executable()
	ready, theirs, err := os.Pipe()
	if err != nil {
		os.Exit(121)
	}
	cmd := exec.Command(self, word, role)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: role != "group"}
	cmd.ExtraFiles = []*os.File{theirs}
	if role == "both" || role == "holder" {
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	}
	if err := cmd.Start(); err != nil {
		os.Exit(122)
	}
	_ = theirs.Close()
	_, _ = bufio.NewReader(ready).ReadString('\n')
	_ = ready.Close()
}

// tellReady tells the parent that this process is ready, and closes all inherited
// descriptors except the streams that the role holds open.
func tellReady() {
	f := os.NewFile(3, "ready")
	_, _ = fmt.Fprintln(f, "ready")
	_ = f.Close()
}

// fork forks without an exec. The child continues at the same place on its only thread,
// and must make nothing but system calls.
//
//go:nosplit
func fork() (child bool) {
	pid, _, _ := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	return pid == 0
}

// sleep sleeps without the runtime, which does not work after fork.
//
//go:nosplit
func sleep(d *syscall.Timespec) {
	syscall.RawSyscall(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(d)), 0, 0)
}

// hostileLife is the number of seconds after which storm and run stop. Without a limit
// they would occupy the machine for ever once their test has been killed.
const hostileLife = 300

// uptime returns the seconds since the machine started. It may be called after fork.
//
//go:nosplit
func uptime() int64 {
	const clockBoottime = 7
	var now syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&now)), 0)
	return int64(now.Sec)
}

// storm starts a thousand children that each live for some milliseconds, again and
// again.
//
//go:nosplit
func storm() {
	runtime.LockOSThread()
	signal.Ignore(syscall.SIGCHLD) // nobody waits for them
	brief, rest := syscall.Timespec{Nsec: 5e6}, syscall.Timespec{Nsec: 1e6}
	for end := uptime() + hostileLife; uptime() < end; {
		for range 1000 {
			if fork() {
				sleep(&brief)
				syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
			}
			sleep(&rest)
		}
	}
}

// run forks again and again: the parent exits, and the child starts a new session and
// does the same.
//
//go:nosplit
func run() {
	runtime.LockOSThread()
	for end := uptime() + hostileLife; uptime() < end; {
		if !fork() {
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
		}
		syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
	}
	syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
}

// childDaemon starts a daemon in a new session without a parent, prints the daemon's
// process id, and exits. With the argument "stay" it lives on. Its first argument is a
// word as for childHostile.
func childDaemon(args []string) {
	has := func(word string) bool { return len(args) > 1 && args[1] == word }
	switch {
	case has("held"):
		fmt.Fprintln(os.NewFile(3, "ready"), os.Getpid())
		_ = os.NewFile(3, "ready").Close()
		time.Sleep(time.Hour)
	case has("middle"):
		self, _ := os.Executable()
		cmd := exec.Command(self, args[0], "held")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		cmd.ExtraFiles = []*os.File{os.NewFile(3, "ready")}
		if err := cmd.Start(); err != nil {
			os.Exit(122)
		}
		os.Exit(0)
	}
	self, _ := os.Executable()
	ready, theirs, err := os.Pipe()
	if err != nil {
		os.Exit(121)
	}
	cmd := exec.Command(self, args[0], "middle")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.ExtraFiles = []*os.File{theirs}
	if err := cmd.Run(); err != nil {
		os.Exit(122)
	}
	_ = theirs.Close()
	line, _ := bufio.NewReader(ready).ReadString('\n')
	fmt.Print(line)
	if has("stay") {
		time.Sleep(time.Hour)
	}
}

// WithWord lists the running processes, except this one, with a word in their command
// line.
func WithWord(t testing.TB, word string) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil && strings.Contains(string(line), word) {
			found = append(found, fmt.Sprintf("%d %q", pid, line))
		}
	}
	return found
}

// NoneWithWord waits until WithWord finds no process.
func NoneWithWord(t testing.TB, word string) {
	t.Helper()
	WaitFor(t, Patience, func() error {
		if alive := WithWord(t, word); len(alive) > 0 {
			return fmt.Errorf("alive: %s", alive)
		}
		return nil
	})
}

// childOrphans makes the given number of orphans, which live for some milliseconds.
func childOrphans(args []string) {
	count, _ := strconv.Atoi(args[0])
	runtime.LockOSThread()
	makeOrphans(count)
}

//go:nosplit
func makeOrphans(count int) {
	brief := syscall.Timespec{Nsec: 3e6}
	for range count {
		if fork() {
			if fork() {
				sleep(&brief)
			}
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
		}
		// The parent of the orphan is waited for, or it would be one, too.
		syscall.RawSyscall6(syscall.SYS_WAIT4, ^uintptr(0), 0, 0, 0, 0, 0)
	}
}
