//go:build unix

package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/protocol"
)

// A command that could not be started is not started again.
func TestStartAfterFailure(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		c := env.Command(background(t), "/no/such/program")
		c.Stdout = io.Discard
		if err := c.Start(); !errors.As(err, new(*client.StartError)) {
			t.Errorf("Start: %v", err)
		}
		if err := c.Start(); err == nil || !strings.Contains(err.Error(), "already started") {
			t.Errorf("second Start: %v", err)
		}
	})
}

// boxWriter is comparable by its type, but not by what it may hold.
type boxWriter struct{ w any }

func (b boxWriter) Write(p []byte) (int, error) { return b.w.(listWriter)[0].Write(p) }

type listWriter []io.Writer

// Writers that cannot be compared are two.
func TestUncomparableWriters(t *testing.T) {
	t.Parallel()
	env := openLocal(t, nil)
	var out bytes.Buffer
	c := env.Command(background(t), "sh", "-c", "echo hello")
	c.Stdout = boxWriter{listWriter{&out}}
	c.Stderr = boxWriter{listWriter{io.Discard}}
	if err := c.Run(); err != nil || out.String() != "hello\n" {
		t.Errorf("%q, %v", &out, err)
	}
}

// Text that is not UTF-8 is never replaced by something else. A server cannot be told
// of it in a start, and names of files are what os.DirFS says they are.
func TestNotUTF8(t *testing.T) {
	t.Parallel()
	const odd = "a\xff"
	everywhere(t, func(t *testing.T, env *client.Environment, p place) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, odd), nil, 0o600); err != nil {
			t.Skipf("no such names here: %v", err)
		}
		entries, err := env.FS(dir).ReadDir(".")
		if err != nil || len(entries) != 1 || (entries[0].Name() != odd && !p.codex) {
			t.Errorf("ReadDir: %v, %v", entries, err)
		}
		if _, err := fs.Stat(env.FS(dir), odd); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("Stat: %v", err)
		}
		argument := env.Command(background(t), "printf", "%s", odd)
		variable := env.Command(background(t), "printenv", "ODD")
		variable.Env = append(os.Environ(), "ODD="+odd)
		for _, c := range []*client.Cmd{argument, variable} {
			out, err := c.Output()
			refused := errors.As(err, new(*client.StartError)) && strings.Contains(err.Error(), "is not UTF-8")
			if passed := err == nil && strings.TrimSuffix(string(out), "\n") == odd; !passed && !refused {
				t.Errorf("%q: %q, %v", c.Args, out, err)
			}
		}
	})
}

// Nothing works in an environment that is closed.
func TestNothingAfterClose(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		dir := t.TempDir()
		files := env.FS(dir)
		if err := files.WriteFile("x", []byte("x")); err != nil {
			t.Fatal(err)
		}
		file, err := files.Open("x")
		if err != nil {
			t.Fatal(err)
		}
		_ = env.Close()
		for name, f := range map[string]func() error{
			"Start":     func() error { return child(env, "exit", "0").Start() },
			"Open":      func() error { _, err := files.Open("x"); return err },
			"Stat":      func() error { _, err := files.Stat("x"); return err },
			"ReadDir":   func() error { _, err := files.ReadDir("."); return err },
			"ReadFile":  func() error { _, err := files.ReadFile("x"); return err },
			"RealPath":  func() error { _, err := files.RealPath("x"); return err },
			"WriteFile": func() error { return files.WriteFile("y", nil) },
			"Create":    func() error { _, err := files.Create("y"); return err },
			"Mkdir":     func() error { return files.Mkdir("d") },
			"Remove":    func() error { return files.Remove("x") },
			"Copy":      func() error { return files.Copy("x", "y") },
			"RoundTrip": func() error {
				r, _ := http.NewRequest(http.MethodGet, "http://127.0.0.1:1", nil)
				_, err := env.Transport().RoundTrip(r)
				return err
			},
		} {
			if err := f(); !errors.Is(err, client.ErrClosed) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := file.Read(make([]byte, 1)); err == nil {
			t.Error("a file can be read")
		}
	})
}

// The input that comes after the end of a command is for whoever reads it next.
func TestStdinFileIsLeft(t *testing.T) {
	t.Parallel()
	env := openLocal(t, nil)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	c := child(env, "exit", "0")
	c.Stdin = r
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString("next"); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, "reading", func() {
		got := make([]byte, 4)
		if _, err := io.ReadFull(r, got); err != nil || string(got) != "next" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// A walk does not follow links in circles.
func TestWalkDir(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		dir := t.TempDir()
		for _, err := range []error{
			os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755),
			os.WriteFile(filepath.Join(dir, "a", "x"), nil, 0o644),
			os.Symlink("..", filepath.Join(dir, "a", "b", "up")),
			os.Symlink("x", filepath.Join(dir, "a", "y")),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		var seen []string
		testkit.Within(t, "walking", func() {
			err := fs.WalkDir(env.FS(dir), ".", func(name string, d fs.DirEntry, err error) error {
				if err != nil || len(seen) > 20 {
					return errors.Join(err, errors.New("it goes on"))
				}
				seen = append(seen, name+" "+d.Type().String())
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		link := "L---------"
		if !env.Info().Capabilities["fsMetadata"] {
			link = "----------"
		}
		want := ". d---------, a d---------, a/b d---------, a/b/up L---------, a/x ----------, a/y " + link
		if got := strings.Join(seen, ", "); got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
	})
}

// A block that could not be written does not count.
func TestWriteCountsWhatIsWritten(t *testing.T) {
	t.Parallel()
	f := newFake(t, func(c *fakeConn) {
		if !c.shake("fileWriteStreaming") {
			return
		}
		for blocks := 0; ; {
			m, ok := c.next()
			switch {
			case !ok:
				return
			case m.Method == "fs/writeBlock" && blocks > 0:
				c.refuse(m, protocol.CodeInternal, "no space left on device (os error 28)")
			case m.Method == "fs/writeBlock":
				blocks++
				c.reply(m, object{})
			default:
				c.reply(m, object{})
			}
		}
	})
	file, err := f.dial(nil).FS("/").Create("x")
	if err != nil {
		t.Fatal(err)
	}
	n, err := file.Write(make([]byte, 3<<20))
	if n != 1<<20 || err == nil {
		t.Errorf("%d bytes are written, %v", n, err)
	}
	_ = file.Close()
}

// When a launched server says something and does not answer, that is in the error.
func TestLaunchQuotesOnTimeout(t *testing.T) {
	t.Parallel()
	said := filepath.Join(t.TempDir(), "said")
	if err := syscall.Mkfifo(said, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancelCause(background(t))
	defer end(nil)
	go func() { // ends when the server has said it
		_, _ = os.ReadFile(said)
		end(context.DeadlineExceeded)
	}()
	command := exec.Command("/bin/sh", "-c", `echo 'waiting for the bus' >&2; : >"$0"; exec sleep 3600`, said)
	_, err := client.Launch(ctx, command, &client.Options{InitializeTimeout: testkit.Patience})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "waiting for the bus") {
		t.Errorf("%v", err)
	}
}
