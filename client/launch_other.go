//go:build !unix

package client

import (
	"os"
	"os/exec"
)

func ownGroup(*exec.Cmd) {}

// terminateGroup does nothing: the server ends when its input does.
func terminateGroup(*os.Process) {}

func killGroup(p *os.Process) { _ = p.Kill() }
