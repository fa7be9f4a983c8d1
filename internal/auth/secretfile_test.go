//go:build unix

package auth_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/auth"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, mode os.FileMode, uid int) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if uid != os.Getuid() {
			if os.Getuid() != 0 {
				return ""
			}
			if err := os.Chown(path, uid, uid); err != nil {
				t.Fatal(err)
			}
		}
		return path
	}
	own := os.Getuid()
	for _, test := range []struct {
		name string
		kind auth.FileKind
		mode os.FileMode
		uid  int
		want string // in the error; "" means no error
	}{
		{"own", auth.SecretFile, 0o600, own, ""},
		{"own, read only", auth.SecretFile, 0o400, own, ""},
		{"secret, read by the group", auth.SecretFile, 0o640, own, "0640"},
		{"secret, read by others", auth.SecretFile, 0o604, own, "run: chmod 600 "},
		{"secret, written by the group", auth.SecretFile, 0o620, own, "0620"},
		{"secret, executed by others", auth.SecretFile, 0o601, own, "0601"},
		{"secret of another", auth.SecretFile, 0o600, 61234, "belongs to the user 61234"},
		{"public", auth.PublicFile, 0o644, own, ""},
		{"public, written by the group", auth.PublicFile, 0o664, own, "run: chmod go-w "},
		{"public, written by others", auth.PublicFile, 0o646, own, "0646"},
		{"public of another", auth.PublicFile, 0o644, 61234, "belongs to the user 61234"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := write(strings.ReplaceAll(test.name, " ", "-"), test.mode, test.uid)
			if path == "" {
				t.Skip("only root can give files away")
			}
			link := path + ".link"
			if err := os.Symlink(path, link); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{path, link} {
				content, err := auth.ReadFile(path, test.kind)
				switch {
				case test.want == "" && (err != nil || string(content) != "content"):
					t.Errorf("got %q, %v", content, err)
				case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
					t.Errorf("got %v, want %q in it", err, test.want)
				case test.want != "" && len(content) > 0:
					t.Errorf("the content comes with the error: %q", content)
				}
			}
		})
	}
}

func load(t *testing.T, path string) *auth.Reloaded[string] {
	t.Helper()
	v, err := auth.LoadFiles(func(f *auth.Files) (string, error) {
		content, err := f.Read(path, auth.SecretFile)
		return string(content), err
	})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestRefresh changes a file in the ways in which people do.
func TestRefresh(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(path, "one")
	v := load(t, path)
	expect := func(what, want string, wantChanged, wantErr bool) {
		t.Helper()
		changed, err := v.Refresh()
		if changed != wantChanged || (err != nil) != wantErr || v.Get() != want {
			t.Errorf("%s: changed %t, error %v, value %q, want %t, %t, %q", what, changed, err, v.Get(), wantChanged, wantErr, want)
		}
	}
	expect("nothing", "one", false, false)
	write(path, "two") // same length, and perhaps within one tick of the clock
	expect("written in place", "two", true, false)
	write(path+".new", "three")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	expect("replaced", "three", true, false)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expect("removed", "three", false, true)
	expect("still removed, which was told", "three", false, false)
	write(path, "three")
	expect("back again", "three", true, false)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	expect("others can read it", "three", false, true)
}

// TestLook writes a file in several steps. Poll must not accept a step that only one
// check finds.
func TestLook(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	v := load(t, path)
	expect := func(what, want string, wantChanged, wantErr bool) {
		t.Helper()
		changed, err := v.Poll()
		if changed != wantChanged || (err != nil) != wantErr || v.Get() != want {
			t.Errorf("%s: changed %t, error %v, value %q, want %t, %t, %q", what, changed, err, v.Get(), wantChanged, wantErr, want)
		}
	}
	write("")
	expect("truncated", "one", false, false)
	write("tw")
	expect("half written", "one", false, false)
	write("two")
	expect("written", "one", false, false)
	expect("written, for the second time", "two", true, false)
	expect("nothing", "two", false, false)
	write("")
	expect("truncated", "two", false, false)
	write("two")
	expect("as it was", "two", false, false)
	write("")
	expect("truncated again", "two", false, false)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expect("removed", "two", false, false)
	expect("removed, for the second time", "two", false, true)
	expect("still removed, which was told", "two", false, false)
	write("three")
	expect("back", "two", false, false)
	if changed, err := v.Refresh(); !changed || err != nil || v.Get() != "three" {
		t.Errorf("at once: changed %t, error %v, value %q", changed, err, v.Get())
	}
	expect("nothing", "three", false, false)
}

// pipe returns a pipe with the content "from a pipe", like <(command) of a shell. The
// test closes its reading end.
func pipe(t *testing.T) (r *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	if _, err := w.WriteString("from a pipe"); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	return r
}

// TestPipe checks that a pipe is read once.
func TestPipe(t *testing.T) {
	r := pipe(t)
	path := fmt.Sprint("/dev/fd/", r.Fd())
	v := load(t, path)
	if changed, err := v.Refresh(); changed || err != nil || v.Get() != "from a pipe" {
		t.Errorf("changed %t, error %v, value %q", changed, err, v.Get())
	}
}

// TestNotRegular replaces a file with a pipe and a device. The file is read again when it
// is back.
func TestNotRegular(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	write := func(content string) {
		t.Helper()
		_ = os.Remove(path)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("0")
	v := load(t, path)
	want := "0"
	for what, put := range map[string]func() error{
		"a pipe":   func() error { return syscall.Mkfifo(path, 0o600) },
		"a device": func() error { return os.Symlink("/dev/null", path) },
	} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := put(); err != nil {
			t.Fatal(err)
		}
		changed, err := v.Refresh()
		if changed || err == nil || !strings.Contains(err.Error(), "it is not a regular file") || v.Get() != want {
			t.Errorf("%s: changed %t, error %v, value %q, want an error and %q", what, changed, err, v.Get(), want)
		}
		if changed, err := v.Refresh(); changed || err != nil {
			t.Errorf("%s, which was told: changed %t, error %v", what, changed, err)
		}
		want += "1"
		write(want)
		if changed, err := v.Refresh(); !changed || err != nil || v.Get() != want {
			t.Errorf("back after %s: changed %t, error %v, value %q, want %q", what, changed, err, v.Get(), want)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if content, err := auth.ReadFile(path, auth.SecretFile); err == nil {
		t.Errorf("a pipe that nobody writes to has %q", content)
	}
}

// TestPipeAmongOthers makes another file fail before the pipe is read again: the content
// of the pipe is still known.
func TestPipeAmongOthers(t *testing.T) {
	r := pipe(t)
	path := filepath.Join(t.TempDir(), "file")
	write := func() {
		t.Helper()
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write()
	v, err := auth.LoadFiles(func(f *auth.Files) (string, error) {
		if _, err := f.Read(path, auth.SecretFile); err != nil {
			return "", err
		}
		content, err := f.Read(fmt.Sprint("/dev/fd/", r.Fd()), auth.SecretFile)
		return string(content), err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Refresh(); err == nil {
		t.Error("a file that is missing is no error")
	}
	write()
	if changed, err := v.Refresh(); !changed || err != nil || v.Get() != "from a pipe" {
		t.Errorf("changed %t, error %v, value %q", changed, err, v.Get())
	}
}

// TestPaths loads a list of files that later names another file, and then one that cannot
// be used. Paths also reports the files in force.
func TestPaths(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("list", "first")
	write("first", "1")
	write("second", "2")
	v, err := auth.LoadFiles(func(f *auth.Files) (string, error) {
		name, err := f.Read(filepath.Join(dir, "list"), auth.PublicFile)
		if err != nil {
			return "", err
		}
		content, err := f.Read(filepath.Join(dir, string(name)), auth.SecretFile)
		return string(content), err
	})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(names ...string) {
		t.Helper()
		_, _ = v.Refresh()
		got := v.Paths(auth.SecretFile)
		for i := range got {
			got[i] = filepath.Base(got[i])
		}
		if slices.Sort(got); !slices.Equal(got, names) {
			t.Errorf("got %q, want %q", got, names)
		}
		if public := v.Paths(auth.PublicFile); len(public) != 1 {
			t.Errorf("the public files are %q", public)
		}
	}
	expect("first")
	write("list", "second")
	expect("second")
	write("list", "missing")
	expect("missing", "second")
	write("list", "first")
	expect("first")
}
