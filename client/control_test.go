//go:build unix

package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
)

func TestSignals(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, p place) {
		start := func() *client.Cmd {
			c := env.Command(background(t), "sleep", "3600") // a program in Go survives SIGUSR1
			c.Stdout = io.Discard                            // so that Wait waits for closed
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			return c
		}
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL, syscall.SIGTERM, syscall.SIGUSR1} {
			c := start()
			err := c.Signal(background(t), sig)
			if errors.Is(err, errors.ErrUnsupported) {
				_ = c.Terminate(background(t), 0)
				_ = c.Wait()
				needs(t, env, "processSignals", func() error { return err })
			}
			if err != nil {
				t.Errorf("%v: %v", sig, err)
			}
			exit, ok := errors.AsType[*client.ExitError](c.Wait())
			if !ok || exit.ExitCode != 128+int(sig) {
				t.Errorf("%v: %v", sig, exit)
			}
			if err := c.Signal(background(t), sig); !errors.Is(err, os.ErrProcessDone) {
				t.Errorf("%v after the end: %v", sig, err)
			}
		}
		c := start()
		if err := c.Signal(background(t), syscall.Signal(0)); err == nil {
			t.Error("signal 0 was sent")
		}
		if err := c.Terminate(background(t), 0); err != nil {
			t.Error(err)
		}
		if exit, ok := errors.AsType[*client.ExitError](c.Wait()); !ok || exit.ExitCode != 137 {
			t.Errorf("terminated: %v", exit)
		}
		if err := c.Terminate(background(t), 0); err != nil {
			t.Errorf("terminated twice: %v", err)
		}
	})
}

func TestTerminateGracefully(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		trap := func(script string) *client.Cmd {
			c := env.Command(background(t), "sh", "-c", script+"; echo ready; while :; do sleep 0.01; done")
			stdout, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(stdout, make([]byte, len("ready\n"))); err != nil {
				t.Fatal(err)
			}
			return c
		}
		c := trap("trap 'exit 9' TERM")
		err := c.Terminate(background(t), testkit.Patience)
		if errors.Is(err, errors.ErrUnsupported) {
			_ = c.Terminate(background(t), 0)
			_ = c.Wait()
			needs(t, env, "processTerminateGraceful", func() error { return err })
		}
		if exit, ok := errors.AsType[*client.ExitError](c.Wait()); err != nil || !ok || exit.ExitCode != 9 {
			t.Errorf("obedient: %v, %v", exit, err)
		}
		c = trap("trap '' TERM")
		if err := c.Terminate(background(t), 50*time.Millisecond); err != nil {
			t.Error(err)
		}
		if exit, ok := errors.AsType[*client.ExitError](c.Wait()); !ok || exit.ExitCode != 137 {
			t.Errorf("stubborn: %v", exit)
		}
	})
}

func TestContextEndsProcess(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(context.Background())
		c := childContext(ctx, env, "idle")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		cancel(why)
		err := c.Wait()
		exit, ok := errors.AsType[*client.ExitError](err)
		if !ok || exit.ExitCode != 137 || !errors.Is(err, why) || !strings.Contains(err.Error(), "enough") {
			t.Errorf("%v", err)
		}
		if err := childContext(ctx, env, "exit", "0").Run(); !errors.Is(err, why) {
			t.Errorf("start after the end: %v", err)
		}

		// A deadline looks like one.
		ctx, stop := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer stop()
		if err := childContext(ctx, env, "idle").Run(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("deadline: %v", err)
		}

		// Cancel is asked instead, and the process may take its time to obey.
		ctx, cancel = context.WithCancelCause(context.Background())
		c = childContext(ctx, env, "cat")
		if _, err := c.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		asked := make(chan struct{})
		c.Cancel = func() error {
			close(asked)
			return c.Signal(context.Background(), os.Interrupt)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		cancel(why)
		<-asked
		if exit, ok := errors.AsType[*client.ExitError](c.Wait()); !ok || exit.ExitCode != 130 {
			t.Errorf("interrupted: %v", exit)
		}
	})
}

// What Cancel fails with is told if nothing else is to be; that there was nothing
// to end any more is no failure.
func TestCancelFails(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		needs(t, env, "processCloseStdin", func() error {
			c := child(env, "cat")
			c.Stdin = strings.NewReader("")
			return c.Run()
		})
		why, broken := errors.New("enough"), errors.New("broken")
		for _, test := range []struct{ fails, want error }{{nil, why}, {os.ErrProcessDone, nil}, {broken, broken}} {
			ctx, cancel := context.WithCancelCause(context.Background())
			defer cancel(nil)
			c := childContext(ctx, env, "cat")
			c.Cancel = func() error {
				if err := c.CloseStdin(background(t)); err != nil {
					return err
				}
				for range c.Events(background(t)) { // that it takes longer than the process changes nothing
				}
				return test.fails
			}
			startPiped(t, c)
			cancel(why)
			err := c.Wait()
			if !errors.Is(err, test.want) || test.want == nil && err != nil {
				t.Errorf("Cancel fails with %v: %v", test.fails, err)
			}
		}
	})
}

// A descendant that keeps the output delays Wait only where output is wanted,
// and there no longer than WaitDelay.
func TestWaitDelay(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		hold := func() *client.Cmd {
			return env.Command(background(t), "sh", "-c", "sleep 3600 & echo $!; read line; exit 7")
		}
		c := hold()
		testkit.Within(t, "Wait without output", func() {
			if exit, ok := errors.AsType[*client.ExitError](c.Run()); !ok || exit.ExitCode != 7 {
				t.Errorf("without output: %v", exit)
			}
		})
		_ = c.Terminate(background(t), 0)
		c = hold()
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out := &replier{stdin: in} // the command ends when its output has come
		c.Stdout, c.WaitDelay = out, 100*time.Millisecond
		testkit.Within(t, "Wait with output", func() {
			if exit, ok := errors.AsType[*client.ExitError](c.Run()); !ok || exit.ExitCode != 7 {
				t.Errorf("with output: %v", exit)
			}
		})
		if pid, err := strconv.Atoi(strings.TrimSpace(out.String())); err != nil || !testkit.Alive(pid) {
			t.Errorf("output %q, %v", out, err)
		}
		c = env.Command(background(t), "sh", "-c", "sleep 3600 & exit 0")
		c.Stdout, c.WaitDelay = io.Discard, 50*time.Millisecond
		testkit.Within(t, "Wait with output", func() {
			if err := c.Run(); !errors.Is(err, exec.ErrWaitDelay) {
				t.Errorf("successful: %v", err)
			}
		})
	})
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, p place) {
		c := env.Command(background(t), "/bin/sh", "-c", "stty size; read x; echo got $x; stty size; cat")
		c.TTY = &client.Size{Rows: 33, Cols: 101}
		stdin, stdout := startPiped(t, c)
		var seen []byte
		expect := func(text string) {
			t.Helper()
			buf := make([]byte, 1000)
			for {
				if _, after, ok := bytes.Cut(seen, []byte(text)); ok {
					seen = after
					return
				}
				n, err := stdout.Read(buf)
				if err != nil {
					t.Fatalf("%q does not come after %q: %v", text, seen, err)
				}
				seen = append(seen, buf[:n]...)
			}
		}
		size, resized := "33 101", "40 90"
		if p.codex {
			size, resized = "24 80", "24 80"
		}
		expect(size)
		err := c.Resize(background(t), client.Size{Rows: 40, Cols: 90})
		switch {
		case p.codex && !errors.Is(err, errors.ErrUnsupported):
			t.Errorf("Resize: %v", err)
		case !p.codex && err != nil:
			t.Error(err)
		}
		if _, err := io.WriteString(stdin, "hello\n"); err != nil {
			t.Fatal(err)
		}
		expect("got hello\r\n")
		expect(resized)
		if err := stdin.Close(); err != nil {
			t.Errorf("end of input: %v", err)
		}
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	})
}

func TestTerminalStdin(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		c := env.Command(background(t), "/bin/cat")
		c.TTY = &client.Size{}
		c.Stdin = strings.NewReader("hello\n")
		out, err := c.Output()
		if err != nil || !slices.Equal(strings.Fields(string(out)), []string{"hello", "hello"}) {
			t.Errorf("%q, %v", out, err)
		}
	})
}
