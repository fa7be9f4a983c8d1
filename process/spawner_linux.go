package process

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// spawner starts children on one thread that never ends: the kernel sends the
// parent-death signal when the thread that made a child ends, not the process.
//
// The thread has a table of descriptors of its own where the kernel grants one.
// A child starts with a copy of its parent's, whose descriptors execve closes
// one by one: in the program's there are some for each process and connection,
// and a start would take the longer the more of them there are.
type spawner struct {
	mu    sync.Mutex // keeps descriptors in the order of calls
	calls chan func()
	// gate and door are the two ends of a socket through which descriptors go to
	// the thread's table: gate is one of the program's, door one of the thread's.
	// -1: the thread shares the program's table.
	gate, door int
}

// theSpawner is that of the program.
var theSpawner = sync.OnceValue(func() *spawner {
	// The next call is there when one is done.
	s := &spawner{calls: make(chan func(), 4), gate: -1, door: -1}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = spawnThread(s.calls, func() error { return separateTable(pair[1]) })
		_ = unix.Close(pair[1]) // the thread has it, or nobody needs it
		if err == nil {
			s.gate, s.door = pair[0], pair[1]
			return s
		}
		_ = unix.Close(pair[0])
	}
	_ = spawnThread(s.calls, func() error { return nil })
	return s
})

// spawnThread has a thread prepare and then run calls; the thread ends when it
// cannot prepare.
func spawnThread(calls <-chan func(), prepare func() error) error {
	prepared := make(chan error)
	go runSpawns(calls, prepare, prepared)
	return <-prepared
}

func runSpawns(calls <-chan func(), prepare func() error, prepared chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// What others see of a program is what its first thread has, above all the
		// descriptors in /proc/self. While this goroutine keeps that thread,
		// another one gets another.
		prepared <- spawnThread(calls, prepare)
		runtime.UnlockOSThread()
		return
	}
	err := prepare()
	prepared <- err
	if err != nil {
		return
	}
	for f := range calls {
		f()
	}
}

// separateTable gives the calling thread a table of descriptors of its own with
// standard error, door, and what the Go runtime waits and is woken with, which
// any of its threads may do. An error leaves the thread unusable.
func separateTable(door int) error {
	// Of the two ways, containers often forbid unshare.
	if unix.CloseRange(math.MaxUint32, math.MaxUint32, unix.CLOSE_RANGE_UNSHARE) != nil {
		if err := unix.Unshare(unix.CLONE_FILES); err != nil {
			return os.NewSyscallError("unshare", err)
		}
	}
	const table = "/proc/thread-self/fd/"
	entries, err := os.ReadDir(table)
	if err != nil {
		return err
	}
	waits, wakes := false, false
	for _, entry := range entries {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			return err
		}
		target, _ := os.Readlink(table + entry.Name()) // closed again: the directory
		switch {
		case target == "anon_inode:[eventpoll]":
			waits = true
		case target == "anon_inode:[eventfd]":
			wakes = true
		case fd == 2 || fd == door:
		default:
			_ = unix.Close(fd)
		}
	}
	if !waits || !wakes {
		return errors.New("the Go runtime waits with something else than it used to")
	}
	return nil
}

// start starts a child whose descriptors are files, and marks it.
func (s *spawner) start(path string, argv []string, attr *syscall.ProcAttr, files []*os.File, mark uint64) (pid int, err error) {
	rights := make([]int, 0, 8)
	for _, f := range files {
		rights = append(rights, int(f.Fd()))
	}
	if attr.Sys.UseCgroupFD {
		rights = append(rights, attr.Sys.CgroupFD)
	}
	done := make(chan struct{})
	callErr := s.call(rights, func() {
		defer close(done)
		if s.door >= 0 {
			if rights, err = takeRights(s.door, len(rights)); err != nil {
				return
			}
			defer closeAll(rights)
		}
		for _, fd := range rights[:len(files)] {
			attr.Files = append(attr.Files, uintptr(fd))
		}
		if attr.Sys.UseCgroupFD {
			attr.Sys.CgroupFD = rights[len(files)]
		}
		marked(mark, func() { pid, err = syscall.ForkExec(path, argv, attr) })
	})
	if callErr != nil {
		return 0, callErr
	}
	<-done
	runtime.KeepAlive(files)
	return pid, err
}

// call has the thread run f, for which it sends descriptors.
func (s *spawner) call(rights []int, f func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate >= 0 {
		if err := unix.Sendmsg(s.gate, []byte{0}, unix.UnixRights(rights...), nil, 0); err != nil {
			return os.NewSyscallError("pass descriptors on to the thread that starts processes", err)
		}
	}
	s.calls <- f
	return nil
}

// takeRights receives the n descriptors of one message.
func takeRights(door, n int) (fds []int, err error) {
	oob := make([]byte, unix.CmsgSpace(4*n))
	for {
		_, size, _, _, err := unix.Recvmsg(door, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("take descriptors over", err)
		}
		oob = oob[:size]
		break
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err == nil && len(messages) == 1 {
		fds, err = unix.ParseUnixRights(&messages[0])
	}
	if err == nil && len(fds) != n {
		closeAll(fds)
		err = fmt.Errorf("take descriptors over: %d of %d came", len(fds), n)
	}
	return fds, err
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
