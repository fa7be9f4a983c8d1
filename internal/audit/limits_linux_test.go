package audit_test

import (
	"os"
	"os/signal"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// withFileLimit runs f while no file may be longer than a limit, which is as good as a
// full disk.
func withFileLimit(t *testing.T, limit uint64, f func()) {
	t.Helper()
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
			t.Fatal(err)
		}
	}()
	f()
}

// setAppendOnly has nothing be taken away from a file, as chattr +a does.
func setAppendOnly(t *testing.T, path string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	const appendOnly = 0x20 // FS_APPEND_FL of linux/fs.h
	set := func(flags int) error { return unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, flags) }
	if err := set(appendOnly); err != nil {
		_ = file.Close()
		t.Skipf("files cannot be made append-only here: %v", err)
	}
	t.Cleanup(func() {
		_ = set(0)
		_ = file.Close()
	})
}
