package testkit

import (
	"fmt"
	"os/exec"
)

// Tmux is the path of the socket of a tmux of a test.
type Tmux string

// Command returns a command of tmux.
func (x Tmux) Command(args ...string) *exec.Cmd {
	return exec.Command("tmux", append([]string{"-S", string(x)}, args...)...)
}

// Run runs a command of tmux, and returns what it prints.
func (x Tmux) Run(args ...string) (string, error) {
	out, err := x.Command(args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("tmux %s: %w\n%s", args[0], err, out)
	}
	return string(out), nil
}
