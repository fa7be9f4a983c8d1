package sys_test

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
	"execserver/internal/testkit"
)

// Execution closes the descriptors from a number on, even if close_range is refused.
func TestRefused(t *testing.T) {
	const mark, first = "EXEC_SERVER_TEST_REFUSED", 900
	if os.Getenv(mark) == "" {
		for _, errno := range []unix.Errno{0, unix.ENOSYS, unix.EPERM} {
			cmd := exec.Command(os.Args[0], "-test.run=^TestRefused$", "-test.v")
			cmd.Env = append(os.Environ(), mark+"=1")
			if errno != 0 {
				cmd.Env = append(cmd.Env, testkit.Refusing(unix.SYS_CLOSE_RANGE, errno))
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %v\n%s", errno, err, out)
			}
		}
		return
	}
	for _, fd := range []int{first - 1, first, first + 50} {
		if err := unix.Dup3(0, fd, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := sys.CloseOnExecFrom(first); err != nil {
		t.Fatal(err)
	}
	for fd, want := range map[int]int{first - 1: 0, first: unix.FD_CLOEXEC, first + 50: unix.FD_CLOEXEC} {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); flags != want || err != nil {
			t.Errorf("descriptor %d: flags %d, want %d; %v", fd, flags, want, err)
		}
	}
}
