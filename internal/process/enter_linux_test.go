package process_test

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/process"
)

// TestStartInForbiddenDirectory checks that the error names the directory that the server may
// not enter, and not only the program, which it may execute.
func TestStartInForbiddenDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o600); err != nil {
		t.Fatal(err)
	}
	// Root enters every directory. A thread that is nobody ends with the goroutine.
	failed := make(chan error)
	go func() {
		if os.Geteuid() == 0 {
			runtime.LockOSThread()
			const same, nobody = ^uintptr(0), 65534
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, nobody, same); errno != 0 {
				failed <- errno
				return
			}
			dir = "/root" // those above the other one are root's, too
		}
		p, err := process.Start(process.Spec{Argv: []string{"/bin/true"}, Dir: dir}, nil)
		if err == nil {
			p.Release()
		}
		failed <- err
	}()
	err := <-failed
	want := `cannot start "/bin/true": working directory "` + dir + `": permission denied (os error 13)`
	if !errors.Is(err, syscall.EACCES) || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}
