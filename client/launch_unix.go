//go:build unix

package client

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup makes a command the leader of a process group, which signals of this program's
// terminal do not reach.
func ownGroup(command *exec.Cmd) {
	if command.SysProcAttr == nil {
		command.SysProcAttr = new(syscall.SysProcAttr)
	}
	if !command.SysProcAttr.Setsid {
		command.SysProcAttr.Setpgid = true
	}
}

// It fails only if the group is gone.

func terminateGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGTERM) }

func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }
