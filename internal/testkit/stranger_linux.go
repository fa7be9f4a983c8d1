package testkit

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
)

// Stranger makes the kernel give a process id that is free to a process which leads a
// process group, or a session, and ends at once. It returns a process that the group has
// left, which nobody but this test has started. The test kills it at its end. Stranger
// skips the test if it may not choose a process id.
func Stranger(t *testing.T, pid int, session bool) (member int) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	awaitTick()
	WaitFor(t, Patience, func() error {
		errno := forkAt(pid, session)
		if errno == unix.EPERM || errno == unix.ENOSYS || errno == unix.EINVAL {
			t.Skipf("cannot choose the process id of a child: %v", errno)
		}
		if errno != 0 {
			return fmt.Errorf("start a process with the id %d: %w", pid, errno)
		}
		return nil
	})
	for {
		if _, err := unix.Wait4(pid, nil, 0, nil); err != unix.EINTR {
			break
		}
	}
	WaitFor(t, Patience, func() error {
		pids, err := procfs.Pids()
		for _, pid2 := range pids {
			if st, err := procfs.ReadStat(pid2); err == nil && st.Group == pid && !st.Ended() {
				member = pid2
				return nil
			}
		}
		return errors.Join(errors.New("the stranger is not there"), err)
	})
	t.Cleanup(func() { _ = unix.Kill(member, unix.SIGKILL) })
	return member
}

// awaitTick waits for the next tick of the clock by which /proc says when processes started.
// The kernel goes through all other numbers first, so within a tick nobody gets one again who
// does not choose it, as Stranger does.
func awaitTick() {
	const tick = 10 * time.Millisecond
	now := func() time.Duration {
		var t unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // it cannot fail
		return time.Duration(t.Nano()) / tick
	}
	for begun := now(); now() == begun; {
		runtime.Gosched()
	}
}

// Unharmed reports whether a process has got no signal that ends it. It stops the process,
// which comes after the signals sent before.
func Unharmed(t *testing.T, pid int) (unharmed bool) {
	t.Helper()
	_ = unix.Kill(pid, unix.SIGSTOP)
	WaitFor(t, Patience, func() error {
		st, err := procfs.ReadStat(pid)
		unharmed = err == nil && st.State == 'T'
		if err == nil && !st.Ended() && !unharmed {
			return fmt.Errorf("process %d neither stops nor ends: %c", pid, st.State)
		}
		return nil
	})
	return unharmed
}

// cloneArgs is struct clone_args of the kernel.
type cloneArgs struct {
	flags, pidFD, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// forkAt forks a child with a process id. The child makes a group or a session, forks a
// child that does nothing, and ends. Both are copies of a program that has other threads,
// so they do nothing but call the kernel.
//
//go:norace
//go:noinline
func forkAt(pid int, session bool) syscall.Errno {
	number := int32(pid)
	args := cloneArgs{flags: unix.CLONE_CLEAR_SIGHAND, exitSignal: uint64(unix.SIGCHLD), setTID: uint64(uintptr(unsafe.Pointer(&number))), setTIDSize: 1}
	call := uintptr(unix.SYS_SETPGID)
	if session {
		call = unix.SYS_SETSID
	}
	fork := cloneArgs{exitSignal: uint64(unix.SIGCHLD)}
	child, _, errno := syscall.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
	if errno != 0 || child != 0 {
		runtime.KeepAlive(&number)
		return errno
	}
	syscall.RawSyscall(unix.SYS_CLOSE_RANGE, 0, 1<<31, 0)
	syscall.RawSyscall(call, 0, 0, 0)
	child, _, errno = syscall.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&fork)), unsafe.Sizeof(fork), 0)
	for errno == 0 && child == 0 {
		// CLONE_CLEAR_SIGHAND has restored what signals do by default.
		syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}
