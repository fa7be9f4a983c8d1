package sandbox

import (
	"os"
	"os/exec"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
)

// TestIsolatedWhileItStarts asks about a launcher that runs already, but of which the server
// does not know the process id yet.
func TestIsolatedWhileItStarts(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	pid := cmd.Process.Pid
	for name, started := range map[string]bool{"started": true, "given up": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
				if err != nil {
					t.Fatal(err)
				}
				l := &Launch{isolated: true, control: os.NewFile(uintptr(pair[0]), "launcher")}
				_ = unix.Close(pair[1])
				l.prepare()
				defer l.Close()
				isolated := make(chan bool)
				go func() { isolated <- IsIsolated(pid) }()
				synctest.Wait()
				if started {
					_, _ = l.Wait(pid)
				} else {
					l.Close()
				}
				if got := <-isolated; got != started {
					t.Errorf("isolated: %t", got)
				}
			})
		})
	}
	if IsIsolated(pid) {
		t.Error("isolated after the launch was closed")
	}
}

// TestIsolatedWithReusedID asks about a process that has got the id of a launcher which has ended, but
// whose Launch is not closed yet.
func TestIsolatedWithReusedID(t *testing.T) {
	stat, err := procfs.ReadStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	earlier := &Launch{pid: stat.Pid, start: stat.Start - 1, control: os.NewFile(^uintptr(0), "none")}
	isolatedLaunchers.Store(earlier.pid, earlier.start)
	if IsIsolated(stat.Pid) {
		t.Error("another process with the id of a launcher is isolated")
	}
	isolatedLaunchers.Store(stat.Pid, stat.Start) // now it is one
	defer isolatedLaunchers.Delete(stat.Pid)
	earlier.Close()
	if !IsIsolated(stat.Pid) {
		t.Error("the end of an earlier launcher with the same id ends the isolation of a later one")
	}
}
