package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/seccomp"
)

// refuseVariable lists the system calls that a test program must not make; see Refusing.
const refuseVariable = "EXEC_SERVER_TEST_REFUSE"

func init() {
	list := os.Getenv(refuseVariable)
	if list == "" {
		return
	}
	_ = os.Unsetenv(refuseVariable) // the filter is inherited
	for item := range strings.SplitSeq(list, ",") {
		number, errno, _ := strings.Cut(item, "=")
		n, err := strconv.ParseUint(number, 10, 32)
		e, err2 := strconv.ParseUint(errno, 10, 16)
		if err == nil && err2 == nil {
			err = Refuse(uint32(n), unix.Errno(e))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "refuse system calls:", err)
			os.Exit(ExitNoFilter)
		}
	}
}

// ExitNoFilter is the exit code of a test program that cannot install the filter of
// Refusing.
const ExitNoFilter = 118

// Refusing returns a variable for the environment of a test program. With it, a system
// call fails with errno in that program and all its children, as it may in a container.
func Refusing(call uint32, errno unix.Errno) string {
	return fmt.Sprintf("%s=%d=%d", refuseVariable, call, int(errno))
}

// WithRefused runs the calling test again in a program in which a system call fails with
// errno, and reports whether it was called in that program.
func WithRefused(t *testing.T, call uint32, errno unix.Errno) bool {
	t.Helper()
	const variable = "EXEC_SERVER_TEST_REFUSED"
	if os.Getenv(variable) == t.Name() {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"="+t.Name(), Refusing(call, errno))
	output, err := cmd.CombinedOutput()
	switch {
	case cmd.ProcessState.ExitCode() == ExitNoFilter, err == nil && strings.Contains(string(output), "--- SKIP"):
		t.Skipf("%s", output)
	case err != nil:
		t.Errorf("%v\n%s", err, output)
	}
	return false
}

// ThreadsNeed reports whether this test program cannot create threads if a call fails
// with errno. A C library creates threads by clone3 and tries another way only after
// ENOSYS. The released program is built without a C library.
func ThreadsNeed(call uint32, errno unix.Errno) bool {
	info, _ := debug.ReadBuildInfo()
	return call == unix.SYS_CLONE3 && errno != unix.ENOSYS && info != nil &&
		slices.Contains(info.Settings, debug.BuildSetting{Key: "CGO_ENABLED", Value: "1"})
}

// Refuse makes a system call fail with errno in this program and all its children.
func Refuse(call uint32, errno unix.Errno) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	const load, equal, answer, failing, allow = 0x20, 0x15, 0x06, 0x50000, 0x7fff0000
	return seccomp.Install([]seccomp.Instruction{
		{Op: load, K: 0},
		{Op: equal, Jf: 1, K: call},
		{Op: answer, K: failing | uint32(errno)},
		{Op: answer, K: allow},
	})
}
