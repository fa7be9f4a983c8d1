package testkit

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

func init() {
	if os.Getenv("EXEC_SERVER_TEST_FIRST_THREAD") != "" {
		runtime.LockOSThread() // init runs on the first thread
		go func() {
			_, _ = os.Stdin.Read(make([]byte, 1))
			os.Exit(0)
		}()
		_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0) // ends this thread alone
	}
}

// A process is alive until its last thread has ended.
func TestAliveWithoutItsFirstThread(t *testing.T) {
	child := exec.Command("/proc/self/exe")
	child.Env = []string{"EXEC_SERVER_TEST_FIRST_THREAD=1"}
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	WaitFor(t, Patience, func() error {
		if len(Zombies(t)) == 0 {
			return errors.New("the first thread runs")
		}
		return nil
	})
	if !Alive(child.Process.Pid) {
		t.Error("a process with a thread counts as ended")
	}
	_ = stdin.Close()
	Gone(t, child.Process.Pid)
}
