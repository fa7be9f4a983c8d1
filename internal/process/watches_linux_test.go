package process_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/process"
	"execserver/internal/seccomp"
)

func init() {
	if len(os.Args) == 2 && os.Args[1] == "unwatched" {
		unwatched()
		os.Exit(0)
	}
}

// unwatched starts processes when the kernel lets this program watch no more files. It prints
// why each did not start.
func unwatched() {
	p, err := process.Start(process.Spec{Argv: []string{"/bin/echo", "lost"}, Dir: "/"}, nil)
	if err != nil {
		fmt.Println("before:", err)
		return
	}
	<-p.Closed()
	const load, equal, ret, noSpace, allow = 0x20, 0x15, 0x06, 0x00050000 | uint32(unix.ENOSPC), 0x7fff0000
	err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if err == nil {
		err = seccomp.Install([]seccomp.Instruction{
			{Op: load}, {Op: equal, Jf: 1, K: unix.SYS_EPOLL_CTL}, {Op: ret, K: noSpace}, {Op: ret, K: allow},
		})
	}
	if err != nil {
		fmt.Println("filter:", err)
		return
	}
	for _, spec := range []process.Spec{{}, {PipeStdin: true}, {TTY: true}} {
		spec.Argv, spec.Dir = []string{"/bin/echo", "lost"}, "/"
		_, err := process.Start(spec, nil)
		fmt.Println(err)
	}
}

// TestNoMoreWatches starts processes when the kernel lets a user watch no more files, which one
// program can bring about. They do not start, because nothing could wait for their output.
func TestNoMoreWatches(t *testing.T) {
	t.Parallel()
	if !seccomp.Supported {
		t.Skip("there is no filter of system calls for", runtime.GOARCH)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	output, err := exec.Command(self, "unwatched").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	if len(lines) != 3 {
		t.Fatalf("%s", output)
	}
	for _, line := range lines {
		if !strings.Contains(line, "programs of this user watch all files that the kernel allows (sysctl fs.epoll.max_user_watches): no space left on device") {
			t.Error(line)
		}
	}
}
