//go:build unix

package client_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
)

func TestOutput(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		out, err := child(env, "echo", "hello", "world").Output()
		if err != nil || string(out) != "hello world\n" {
			t.Errorf("%q, %v", out, err)
		}
		sh := func(script string) *client.Cmd { return env.Command(background(t), "sh", "-c", script) }
		out, err = sh("echo out; echo err >&2; exit 4").Output()
		exit, ok := errors.AsType[*client.ExitError](err)
		if !ok || string(out) != "out\n" || string(exit.Stderr) != "err\n" || exit.ExitCode != 4 {
			t.Errorf("%q, %v", out, err)
		}
		out, err = sh("echo out; echo err >&2; echo out").CombinedOutput()
		if rest := strings.Replace(string(out), "err\n", "", 1); err != nil || len(rest) == len(out) || rest != "out\nout\n" {
			t.Errorf("combined: %q, %v", out, err)
		}
		var stdout, stderr bytes.Buffer
		c := sh("echo out; echo err >&2")
		c.Stdout, c.Stderr = &stdout, &stderr
		if err := c.Run(); err != nil || stdout.String() != "out\n" || stderr.String() != "err\n" {
			t.Errorf("apart: %q, %q, %v", &stdout, &stderr, err)
		}
		if _, err := c.Output(); err == nil {
			t.Error("Output of a command that has run")
		}
	})
}

// replier is a writer of output that answers each line with an empty one.
type replier struct {
	bytes.Buffer
	stdin io.Writer
	err   error
}

func (a *replier) Write(p []byte) (int, error) {
	n, err := a.Buffer.Write(p) // first: after the answer the command may end
	if bytes.HasSuffix(p, []byte("\n")) {
		_, err := a.stdin.Write([]byte("\n"))
		a.err = errors.Join(a.err, err)
	}
	return n, err
}

// TestAnsweredOutput has the writer of the output answer the command, from the first line on.
// The two streams are one in the order in which they were read.
func TestAnsweredOutput(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		c := env.Command(background(t), "sh", "-c", "echo out; read line; echo err >&2; read line; echo out; read line")
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		both := &replier{stdin: in}
		c.Stdout, c.Stderr = both, both
		if err := errors.Join(c.Run(), both.err); err != nil || both.String() != "out\nerr\nout\n" {
			t.Errorf("%q, %v", both, err)
		}
	})
}

// As with os/exec, output is everything that comes until nobody holds the streams.
func TestOutputOfTheBackground(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		out, err := env.Command(background(t), "sh", "-c", "(while kill -0 $$; do sleep .01; done 2>/dev/null; sleep .6; echo late) & echo early").Output()
		if err != nil || string(out) != "early\nlate\n" {
			t.Errorf("%q, %v", out, err)
		}
	})
}

func TestManyBytes(t *testing.T) {
	t.Parallel()
	const size = 6 << 20
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		var out patternChecker
		c := child(env, "pattern", strconv.Itoa(size))
		c.Stdout = &out
		if exit, ok := errors.AsType[*client.ExitError](c.Run()); !ok || exit.ExitCode != 9 || out.n != size {
			t.Errorf("%d bytes, %v", out.n, exit)
		}
	})
}

func TestStdin(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		c := child(env, "cat")
		c.Stdin = strings.NewReader("typed\n")
		out, err := c.Output()
		needs(t, env, "processCloseStdin", func() error { return err })
		if err != nil || string(out) != "typed\n" {
			t.Errorf("%q, %v", out, err)
		}

		// More than fits anywhere, both ways at once.
		var back patternChecker
		c = child(env, "cat")
		c.Stdin, c.Stdout = bytes.NewReader(testkit.Pattern(3<<20)), &back
		if err := c.Run(); err != nil || back.n != 3<<20 {
			t.Errorf("%d bytes came back, %v", back.n, err)
		}

		// A process that does not read its input does not fail because of it.
		c = child(env, "exit", "0")
		c.Stdin = bytes.NewReader(make([]byte, 10<<20))
		if err := c.Run(); err != nil {
			t.Errorf("unread input: %v", err)
		}

		// Input that fails is an error, although the process succeeds.
		broken := errors.New("broken")
		c = child(env, "cat")
		c.Stdin = io.MultiReader(strings.NewReader("x"), errorReader{broken})
		if err := c.Run(); !errors.Is(err, broken) {
			t.Errorf("broken input: %v", err)
		}
	})
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }

func TestStdinPipe(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		c := child(env, "cat")
		stdin, stdout := startPiped(t, c)
		buf := make([]byte, 100)
		for _, line := range []string{"one\n", "two\n"} {
			if _, err := io.WriteString(stdin, line); err != nil {
				t.Fatal(err)
			}
			if n, err := io.ReadFull(stdout, buf[:len(line)]); err != nil || string(buf[:n]) != line {
				t.Errorf("%q, %v", buf[:n], err)
			}
		}
		err := stdin.Close()
		if errors.Is(err, errors.ErrUnsupported) {
			_ = c.Terminate(background(t), 0)
			_ = c.Wait()
			needs(t, env, "processCloseStdin", func() error { return err })
		}
		if err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := stdin.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
		if _, err := io.WriteString(stdin, "late"); !errors.Is(err, client.ErrStdinClosed) || !errors.Is(err, syscall.EPIPE) {
			t.Errorf("Write after the end: %v", err)
		}
		if n, err := stdout.Read(buf); n != 0 || err != io.EOF {
			t.Errorf("Read after the end: %d, %v", n, err)
		}
	})
}

// What has been written is read after Wait, too, and in any order.
func TestOutputPipes(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		c := env.Command(background(t), "sh", "-c", "echo out; echo err >&2")
		stdout, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		stderr, err := c.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.StdoutPipe(); err == nil {
			t.Error("second StdoutPipe")
		}
		if err := c.Run(); err != nil {
			t.Error(err)
		}
		if out, err := io.ReadAll(stderr); err != nil || string(out) != "err\n" {
			t.Errorf("stderr %q, %v", out, err)
		}
		if out, err := io.ReadAll(stdout); err != nil || string(out) != "out\n" {
			t.Errorf("stdout %q, %v", out, err)
		}
	})
}

func TestOutputPipeClosedEarly(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		c := child(env, "flood", strconv.Itoa(8<<20))
		stdout, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(stdout, make([]byte, 100)); err != nil {
			t.Error(err)
		}
		if err := stdout.Close(); err != nil {
			t.Error(err)
		}
		testkit.Within(t, "Wait", func() {
			if err := c.Wait(); err != nil {
				t.Error(err)
			}
		})
	})
}

func TestWriterFails(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		broken := errors.New("broken")
		c := child(env, "flood", strconv.Itoa(6<<20))
		c.Stdout = writerFunc(func([]byte) (int, error) { return 0, broken })
		testkit.Within(t, "Run", func() {
			if err := c.Run(); !errors.Is(err, broken) {
				t.Errorf("Run: %v", err)
			}
		})
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// A reader that is slow makes its own child wait and nobody else.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, p place) {
		if p.codex {
			t.Skip("the released server has one queue for all that a connection is sent")
		}
		file := filepath.Join(t.TempDir(), "count")
		slow := child(env, "count", file)
		stdout, err := slow.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := slow.Start(); err != nil {
			t.Fatal(err)
		}
		last, same := int64(0), 0
		testkit.WaitFor(t, testkit.Patience, func() error {
			n, err := testkit.Counted(file)
			if same++; n != last || n == 0 {
				last, same = n, 0
			}
			if err == nil && same < 10 {
				err = fmt.Errorf("the child has written %d bytes and goes on", n)
			}
			return err
		})
		if last > 8<<20 {
			t.Errorf("the child could write %d bytes that nobody reads", last)
		}
		if out, err := child(env, "echo", "hi").Output(); err != nil || string(out) != "hi\n" {
			t.Errorf("another process: %q, %v", out, err)
		}
		var check patternChecker
		if _, err := io.CopyN(&check, stdout, last+2<<20); err != nil {
			t.Errorf("reading on: %v", err)
		}
		if err := slow.Terminate(background(t), 0); err != nil {
			t.Error(err)
		}
		_ = stdout.Close()
		_ = slow.Wait()
	})
}
