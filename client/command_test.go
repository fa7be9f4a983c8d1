//go:build unix

package client_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"execserver/client"
	"execserver/protocol"
)

func TestRun(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		c := child(env, "exit", "0")
		if err := c.Run(); err != nil || !c.Exit.Success() {
			t.Errorf("exit 0: %v, %v", err, c.Exit)
		}
		c = child(env, "exit", "3")
		exit, ok := errors.AsType[*client.ExitError](c.Run())
		if !ok || exit.ExitCode != 3 || exit.Error() != "exit status 3" || c.Exit.ExitCode != 3 || exit.Cause != nil {
			t.Errorf("exit 3: %v", exit)
		}
	})
}

// Run drops what it has nowhere to put, and tells how the command ended all the same.
func TestRunDropsOutput(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		c := child(env, "flood", "10000000")
		if err := c.Run(); err != nil || !c.Exit.Success() {
			t.Fatalf("%v, %v", err, c.Exit)
		}
		var kinds []client.EventKind
		for e, err := range c.Events(background(t)) {
			if err == nil && e.Kind != client.Output {
				kinds = append(kinds, e.Kind)
			}
		}
		if want := []client.EventKind{client.Exited, client.Closed}; !slices.Equal(kinds, want) {
			t.Errorf("%v, want %v", kinds, want)
		}
	})
}

func TestStartFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		tests := []struct {
			name, path, dir string
			is, isNot       []error
		}{
			{"name", "no-such-program", "", []error{exec.ErrNotFound, fs.ErrNotExist}, nil},
			{"path", "/no/such/program", "", []error{exec.ErrNotFound, fs.ErrNotExist}, nil},
			{"directory", "true", "/no/such/directory", []error{fs.ErrNotExist}, []error{exec.ErrNotFound}},
			{"permission", script, "", []error{fs.ErrPermission}, []error{fs.ErrNotExist}},
		}
		for _, test := range tests {
			c := env.Command(background(t), test.path)
			c.Dir = test.dir
			err := c.Run()
			start, ok := errors.AsType[*client.StartError](err)
			if !ok || start.Path != test.path || !strings.Contains(err.Error(), test.path) {
				t.Errorf("%s: %v", test.name, err)
			}
			for _, want := range test.is {
				if !errors.Is(err, want) {
					t.Errorf("%s: %v is not %v", test.name, err, want)
				}
			}
			for _, want := range test.isNot {
				if errors.Is(err, want) {
					t.Errorf("%s: %v is %v", test.name, err, want)
				}
			}
		}
	})
}

func TestEnvironmentVariables(t *testing.T) {
	t.Parallel()
	// The servers inherit the mark from this program.
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		show := func(vars []string, policy *client.EnvPolicy) string {
			c := env.Command(background(t), "/bin/sh", "-c", `echo "$EXEC_SERVER_TEST_MARKED,$A"`)
			c.Env, c.EnvPolicy = vars, policy
			out, err := c.Output()
			if err != nil {
				t.Error(err)
			}
			return strings.TrimSpace(string(out))
		}
		if got := show(nil, nil); got != mark+"," {
			t.Errorf("inherited: %q", got)
		}
		if got := show([]string{"A=1", "A=2"}, nil); got != ",2" {
			t.Errorf("replaced: %q", got)
		}
		if got := show([]string{}, nil); got != "," {
			t.Errorf("empty: %q", got)
		}
		if got := show([]string{"A=1"}, client.InheritAll()); got != mark+",1" {
			t.Errorf("added: %q", got)
		}
		if got := show(nil, &client.EnvPolicy{Inherit: "core"}); got != "," {
			t.Errorf("core: %q", got)
		}

		// As with os/exec, PWD spells Dir as it was given.
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink("/", link); err != nil {
			t.Fatal(err)
		}
		c := env.Command(background(t), "/bin/sh", "-c", `echo "$EXEC_SERVER_TEST_MARKED,$PWD"`)
		c.Dir = link
		if out, err := c.Output(); err != nil || strings.TrimSpace(string(out)) != mark+","+link {
			t.Errorf("PWD: %q, %v", out, err)
		}
	})
}

func TestDirAndName(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		pwd := func(dir string) string {
			c := env.Command(background(t), "/bin/pwd")
			c.Dir = dir
			out, err := c.Output()
			if err != nil {
				t.Error(err)
			}
			return strings.TrimSpace(string(out))
		}
		if got := pwd(dir); got != dir {
			t.Errorf("%q, want %q", got, dir)
		}
		if got, want := pwd(""), env.Info().Dir; got != want {
			t.Errorf("default %q, want %q", got, want)
		}
		if got, want := pwd(".."), filepath.Dir(env.Info().Dir); got != want {
			t.Errorf("relative %q, want %q", got, want)
		}
		c := env.Command(background(t), "/bin/sh", "-c", "echo $0")
		c.Args[0] = "zed"
		if out, err := c.Output(); err != nil || string(out) != "zed\n" {
			t.Errorf("Args[0]: %q, %v", out, err)
		}
	})
}

func TestMisuse(t *testing.T) {
	t.Parallel()
	env := openLocal(t, nil)
	c := child(env, "exit", "0")
	for name, f := range map[string]func() error{
		"Wait":       c.Wait,
		"Signal":     func() error { return c.Signal(background(t), os.Kill) },
		"Terminate":  func() error { return c.Terminate(background(t), 0) },
		"Resize":     func() error { return c.Resize(background(t), client.Size{}) },
		"Write":      func() error { return c.Write(background(t), nil) },
		"CloseStdin": func() error { return c.CloseStdin(background(t)) },
		"Read":       func() error { _, err := c.Read(background(t), 0, 0); return err },
		"Changed":    func() error { _, err := c.Changed(background(t), 0); return err },
	} {
		if err := f(); err == nil || err.Error() != "client: not started" {
			t.Errorf("%s before Start: %v", name, err)
		}
	}
	if stdin, err := child(env, "cat").StdinPipe(); err != nil {
		t.Fatal(err)
	} else if _, err := stdin.Write(nil); err == nil {
		t.Error("a pipe takes input before Start")
	}
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err == nil {
		t.Error("started twice")
	}
	if err := c.Wait(); err == nil {
		t.Error("waited twice")
	}
	for name, f := range map[string]func() error{
		"StdinPipe":  func() error { _, err := c.StdinPipe(); return err },
		"StdoutPipe": func() error { _, err := c.StdoutPipe(); return err },
		"StderrPipe": func() error { _, err := c.StderrPipe(); return err },
	} {
		if err := f(); err == nil {
			t.Errorf("%s after Start succeeded", name)
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				want := fmt.Sprint("process ", i, "\n")
				if out, err := child(env, "echo", "process", strconv.Itoa(i)).Output(); err != nil || string(out) != want {
					t.Errorf("%q, %v", out, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestLimits(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		c := env.Command(background(t), "sleep", "3600")
		c.Limits.Timeout = 50 * time.Millisecond
		err := c.Run()
		needs(t, env, "processLimits", func() error { return err })
		exit, ok := errors.AsType[*client.ExitError](err)
		if !ok || exit.EndedBy != protocol.EndedByTimeout || exit.Signal != "SIGTERM" || !strings.Contains(err.Error(), "ended by its time limit") {
			t.Errorf("timeout: %v", err)
		}
		c = child(env, "flood", strconv.Itoa(1<<30))
		c.Limits.MaxOutputBytes = 100_000
		if exit, ok := errors.AsType[*client.ExitError](c.Run()); !ok || exit.EndedBy != protocol.EndedByOutputLimit {
			t.Errorf("output: %v", exit)
		}
	})
}

// The exit record tells as much as the server does.
func TestExitRecord(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, p place) {
		exit, ok := errors.AsType[*client.ExitError](child(env, "signal", "9").Run())
		if !ok || exit.ExitCode != 137 || !p.codex && (exit.Signal != "SIGKILL" || exit.EndedBy != protocol.EndedBySelf || exit.Rusage == nil) {
			t.Errorf("%+v", exit)
		}
		if want := "signal: SIGKILL"; !p.codex && exit.Error() != want {
			t.Errorf("%q, want %q", exit.Error(), want)
		}
		c := child(env, "idle")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if err := c.Terminate(background(t), 0); err != nil {
			t.Error(err)
		}
		if exit, ok = errors.AsType[*client.ExitError](c.Wait()); !ok || !p.codex && exit.EndedBy != protocol.EndedByClient {
			t.Errorf("%+v", exit)
		}
	})
}
