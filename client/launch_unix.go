//go:build unix

package client

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup makes a command the leader of a process group, which keys of our
// terminal do not reach.
func ownGroup(command *exec.Cmd) {
	if command.SysProcAttr == nil {
		command.SysProcAttr = new(syscall.SysProcAttr)
	}
	if !command.SysProcAttr.Setsid {
		command.SysProcAttr.Setpgid = true
	}
}

// The group may be gone, and nothing else can go wrong for its parent.

func terminateGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGTERM) }

func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }
