package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// TestInheritedDescriptors checks that the server passes none of the descriptors with
// which it was started to its processes, which may live for ever. It also checks that
// processes start where a container refuses newer system calls.
func TestInheritedDescriptors(t *testing.T) {
	for _, call := range []struct {
		name   string
		number uint32
	}{
		{"clone3", unix.SYS_CLONE3},
		{"close_range", unix.SYS_CLOSE_RANGE},
	} {
		for _, errno := range []unix.Errno{0, unix.ENOSYS, unix.EPERM} {
			t.Run(fmt.Sprintf("%s=%d", call.name, errno), func(t *testing.T) {
				command := exec.Command("exec-server")
				if errno != 0 {
					if testkit.ThreadsNeed(call.number, errno) {
						t.Skip("this test program makes no threads without it")
					}
					command.Env = append(os.Environ(), testkit.Refusing(call.number, errno))
				}
				command.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: testkit.Cgroup(t)}
				inheritedDescriptors(t, command)
			})
		}
	}
}

func inheritedDescriptors(t *testing.T, command *exec.Cmd) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	command.ExtraFiles = []*os.File{w} // descriptor 3
	command.Args = append(command.Args, "--listen=stdio")
	p, err := launch(command, false)
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	c := (&ownedProgram{p, t}).connect()
	c.start(shellSpec("p", "readlink /proc/$$/fd/2; readlink /proc/$$/fd/3; echo end"))
	c.closed("p")
	if lines := strings.Split(c.processes.Of("p").Output.String(), "\n"); len(lines) != 3 || !strings.HasPrefix(lines[0], "pipe:") || lines[1] != "end" {
		t.Errorf("descriptors 2 and 3 are %q", lines)
	}
	if err := p.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.exits(t, 0)
}
