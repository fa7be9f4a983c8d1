package server_test

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// unixPeer is the user who connects to unix sockets: nobody's, where that can be.
func unixPeer() int {
	if os.Geteuid() == 0 {
		return 61234
	}
	return os.Geteuid()
}

// asUser calls f as a user, which only this thread is meanwhile.
func asUser(uid int, f func()) {
	if uid == os.Geteuid() {
		f()
		return
	}
	runtime.LockOSThread()
	const same = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(uid), same); errno != 0 {
		panic(errno)
	}
	f()
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, 0, same); errno != 0 {
		panic(errno)
	}
	runtime.UnlockOSThread()
}
