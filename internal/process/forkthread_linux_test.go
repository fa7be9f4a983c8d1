package process

import (
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSparesEarlierChildren has a fork thread on a thread with an earlier child, which
// other code still waits for.
func TestSparesEarlierChildren(t *testing.T) {
	other := exec.Command("/bin/sh", "-c", "exit 7")
	swept := make(chan bool)
	go func() {
		defer close(swept)
		runtime.LockOSThread() // until the goroutine ends, and the thread with it
		if err := other.Start(); err != nil {
			t.Error(err)
			return
		}
		s := &forkThread{leaders: make(map[int]*child)}
		s.lockThread()
		_ = unix.Waitid(unix.P_PID, other.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		s.reapStrays()
	}()
	<-swept
	if _ = other.Wait(); other.ProcessState.ExitCode() != 7 {
		t.Errorf("the child has ended as %v", other.ProcessState)
	}
}
