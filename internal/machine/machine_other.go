//go:build !linux

package machine

import "os/exec"

// Init does nothing on this system.
func Init() {}

// Command fails on this system.
func Command(Machine) (*exec.Cmd, error) { return nil, ErrUnsupported }
