package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// codexOnce has Codex answer one prompt, and looks whether the command ran on the box.
func (d *demo) codexOnce(ctx context.Context, prompt string) error {
	here, err := os.Hostname()
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "here      Codex %s runs on a machine with the host name %s\n\n$ codex exec '%s'\n", codexVersion, here, prompt)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// The box confines the commands, so Codex does not ask for a sandbox in it.
	cmd := d.codexCommand(ctx, nil, "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", prompt)
	cmd.Stderr = d.out // on standard output Codex repeats the model's last words
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("codex exec: %w", errors.Join(err, ctx.Err()))
	}
	requests := d.model.Requests()
	if len(requests) == 0 {
		return errors.New("the model was asked for nothing")
	}
	last := requests[len(requests)-1]
	_, turn := lastPrompt(last)
	result, ok := last.Output(commandID(turn))
	if !ok {
		return errors.New("the model was told nothing about the command")
	}
	_, output, _ := strings.Cut(result.Text(), "\nOutput:\n")
	fmt.Fprintf(d.out, "\nCodex ran here, on %s. This is what its command has printed on %s:\n%s", here, d.hostname, output)
	return nil
}

// codexOnTerminal starts Codex's terminal program, until the user leaves it.
func (d *demo) codexOnTerminal(ctx context.Context) error {
	cmd := d.codexCommand(ctx, []string{"-t", "--escape-char", "none"}, "--sandbox", "danger-full-access", "--ask-for-approval", "never")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}

// codexCommand returns the command of a Codex that knows nothing but the demonstration.
// "exec-server run" ends all that Codex leaves running here, such as its daemon.
func (d *demo) codexCommand(ctx context.Context, flags []string, args ...string) *exec.Cmd {
	argv := append([]string{"run", "--on", "local"}, flags...)
	argv = append(append(argv, "--", d.codex, "-C", d.project), args...)
	cmd := exec.CommandContext(ctx, d.server, argv...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Dir = d.project
	cmd.Env = append(os.Environ(), "CODEX_HOME="+filepath.Join(d.root, "codex"), "CODEX_EXEC_SERVER_URL="+d.box.url)
	return cmd
}
