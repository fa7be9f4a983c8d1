//go:build !unix

package connect

import "os/exec"

// detach is for systems with terminals as on Unix.
func detach(*exec.Cmd) {}

func mayAsk() bool { return true }
