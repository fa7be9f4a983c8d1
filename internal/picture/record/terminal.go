//go:build linux

package main

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

const prompt = "laptop:~/project$"

// A terminal is one of tmux on the laptop.
type terminal struct{ socket string }

// play does what the picture shows, and returns the screen.
func play(socket string) (string, error) {
	t := terminal{socket}
	if err := wait(func() error {
		_, err := t.tmux("new-session", "-d", "-x", strconv.Itoa(columns), "-y", strconv.Itoa(rows), "-c", project,
			"exec env PS1='\\[\\e[32m\\]laptop\\[\\e[m\\]:\\[\\e[34m\\]\\w\\[\\e[m\\]$ ' bash --norc --noprofile")
		return err
	}); err != nil {
		return "", err
	}
	for _, step := range []struct{ keys, await string }{
		{"", prompt},
		{"hostname", "\nlaptop\n"},
		{"exec-server codex-config add box --ssh box", "run --on box -- hostname\n"},
		{"exec-server run --on box -- hostname", "\nbox\n"},
		{"codex --no-alt-screen", "? for shortcuts"},
		{question, "This is box"},
	} {
		if err := t.enter(step.keys, step.await); err != nil {
			return "", err
		}
	}
	return t.tmux("capture-pane", "-e", "-p")
}

// enter types a line, and waits until the screen shows a text.
func (t terminal) enter(keys, await string) error {
	if keys != "" {
		if _, err := t.tmux("send-keys", "-l", keys); err != nil {
			return err
		}
		if err := t.await(keys); err != nil {
			return err
		}
		if _, err := t.tmux("send-keys", "Enter"); err != nil {
			return err
		}
	}
	return t.await(await)
}

func (t terminal) await(text string) error {
	return wait(func() error {
		shown, err := t.tmux("capture-pane", "-p")
		if err == nil && !strings.Contains(shown, text) {
			err = fmt.Errorf("the terminal does not show %q:\n%s", text, shown)
		}
		return err
	})
}

func (t terminal) tmux(args ...string) (string, error) {
	cmd := exec.Command("tmux", append([]string{"-N", "-S", t.socket}, args...)...) // -N: only the server of the laptop
	cmd.Env = environment()                                                         // which the session gets
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("tmux %s: %w\n%s", args[0], err, out)
	}
	return string(out), nil
}
