//go:build unix

package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"execserver/client"
	"execserver/internal/testkit"
)

// tree makes a directory with some files.
func tree(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte) {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("hello.txt", []byte("hello\n"))
	write("empty", nil)
	write("a/b/c.txt", []byte("deep"))
	write("a/ä ö%20.txt", []byte("name"))
	write("pattern", testkit.Pattern(500))
	if err := errors.Join(os.Symlink("hello.txt", filepath.Join(dir, "link")), os.Symlink("a", filepath.Join(dir, "dirlink")),
		os.Mkdir(filepath.Join(dir, "none"), 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestFS(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, p place) {
		fsys := env.FS(tree(t))
		if err := testFS(p, fsys, "hello.txt", "empty", "a/b/c.txt", "a/ä ö%20.txt", "pattern", "link", "dirlink"); err != nil {
			t.Error(err)
		}
		if err := fstest.TestFS(env.FS(filepath.Join(fsysDir(t, fsys), "none"))); err != nil {
			t.Error(err)
		}
		sub, err := fs.Sub(fsys, "a/b")
		if err != nil {
			t.Fatal(err)
		}
		if data, err := fs.ReadFile(sub, "c.txt"); err != nil || string(data) != "deep" {
			t.Errorf("Sub: %q, %v", data, err)
		}
		if matches, err := fs.Glob(fsys, "*/b"); err != nil || fmt.Sprint(matches) != "[a/b dirlink/b]" {
			t.Errorf("Glob: %q, %v", matches, err)
		}
	})
}

// fsysDir is the directory of an FS.
func fsysDir(t *testing.T, fsys *client.FS) string {
	t.Helper()
	dir, err := fsys.RealPath(".")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestFSErrors(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		dir := tree(t)
		fsys := env.FS(dir)
		open := func(name string) error { _, err := fsys.Open(name); return err }
		read := func(name string) error { _, err := fsys.ReadFile(name); return err }
		list := func(name string) error { _, err := fsys.ReadDir(name); return err }
		stat := func(name string) error { _, err := fsys.Stat(name); return err }
		for _, test := range []struct {
			name string
			err  error
			is   error
		}{
			{"open missing", open("missing"), fs.ErrNotExist},
			{"open below a file", open("hello.txt/x"), syscall.ENOTDIR},
			{"open ..", open("../x"), fs.ErrInvalid},
			{"open /", open("/x"), fs.ErrInvalid},
			{"read missing", read("a/missing"), fs.ErrNotExist},
			{"list missing", list("missing"), fs.ErrNotExist},
			{"list a file", list("hello.txt"), syscall.ENOTDIR},
			{"stat missing", stat("missing"), fs.ErrNotExist},
			{"remove ..", fsys.Remove("../x"), fs.ErrInvalid},
		} {
			if path, ok := errors.AsType[*fs.PathError](test.err); !ok || !errors.Is(test.err, test.is) || path.Op == "" {
				t.Errorf("%s: %v is not %v", test.name, test.err, test.is)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		for range 500 { // one could lose to an answer that came at once
			if _, err := fsys.WithContext(ctx).Stat("hello.txt"); !errors.Is(err, context.Canceled) {
				t.Fatalf("cancelled: %v", err)
			}
		}
	})
}

func TestReadingInBlocks(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		dir := t.TempDir()
		want := testkit.Pattern(5<<20 + 5)
		if err := os.WriteFile(filepath.Join(dir, "big"), want, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := env.FS(dir).Open("big")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if data, err := io.ReadAll(struct{ io.Reader }{f}); err != nil || !bytes.Equal(data, want) {
			t.Errorf("read %d bytes, %v", len(data), err)
		}
		at := make([]byte, 2<<20)
		if n, err := f.(io.ReaderAt).ReadAt(at, 3<<20); err != nil || !bytes.Equal(at[:n], want[3<<20:5<<20]) {
			t.Errorf("ReadAt: %d bytes, %v", n, err)
		}
		if n, err := f.(io.ReaderAt).ReadAt(at, 4<<20); err != io.EOF || !bytes.Equal(at[:n], want[4<<20:]) {
			t.Errorf("ReadAt beyond the end: %d bytes, %v", n, err)
		}
		var out bytes.Buffer
		if _, err := f.(io.Seeker).Seek(7, io.SeekStart); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(f, make([]byte, 10)); err != nil {
			t.Error(err)
		}
		if n, err := io.Copy(&out, f); err != nil || n != int64(len(want)-17) || !bytes.Equal(out.Bytes(), want[17:]) {
			t.Errorf("copied %d bytes, %v", n, err)
		}
		if n, err := f.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("at the end: %d, %v", n, err)
		}
		// A writer that fails leaves nothing behind.
		_, _ = f.(io.Seeker).Seek(0, io.SeekStart)
		broken := errors.New("broken")
		if _, err := io.Copy(writerFunc(func([]byte) (int, error) { return 0, broken }), f); !errors.Is(err, broken) {
			t.Errorf("copied to a broken writer: %v", err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if _, err := f.Read(make([]byte, 1)); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("Read after Close: %v", err)
		}
		if err := f.Close(); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("second Close: %v", err)
		}
	})
}

func TestWriting(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		dir, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		fsys := env.FS(dir)
		if err := fsys.WriteFile("a", []byte("one")); errors.Is(err, errors.ErrUnsupported) {
			t.Skipf("the server cannot write: %v", err)
		} else if err != nil {
			t.Fatal(err)
		}
		content := func(name, want string) {
			t.Helper()
			if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(data) != want {
				t.Errorf("%s: %.100q, %v", name, data, err)
			}
		}
		ok := func(err error) {
			t.Helper()
			if err != nil {
				t.Error(err)
			}
		}
		is := func(err, want error) {
			t.Helper()
			if !errors.Is(err, want) {
				t.Errorf("%v is not %v", err, want)
			}
		}
		content("a", "one")
		ok(fsys.WriteFile("a", nil))
		content("a", "")
		is(fsys.WriteFile("no/such/dir", nil), fs.ErrNotExist)
		is(fsys.WriteFile(".", nil), syscall.EISDIR)

		ok(fsys.Mkdir("d"))
		is(fsys.Mkdir("d"), fs.ErrExist)
		is(fsys.Mkdir("x/y"), fs.ErrNotExist)
		ok(fsys.MkdirAll("d/e/f"))
		ok(fsys.MkdirAll("d/e/f"))
		ok(fsys.WriteFile("d/e/f/g", []byte("deep")))
		ok(fsys.Copy("d", "copy"))
		content("copy/e/f/g", "deep")
		ok(fsys.Copy("d/e/f/g", "g"))
		content("g", "deep")
		is(fsys.Copy("missing", "g"), fs.ErrNotExist)

		is(fsys.Remove("d"), syscall.ENOTEMPTY)
		is(fsys.Remove("missing"), fs.ErrNotExist)
		ok(fsys.RemoveAll("missing"))
		ok(fsys.RemoveAll("d"))
		if _, err := os.Stat(filepath.Join(dir, "d")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("d: %v", err)
		}
		ok(fsys.Remove("g"))

		w, err := fsys.Create("stream")
		if err != nil {
			t.Fatal(err)
		}
		want := testkit.Pattern(2<<20 + 77)
		for rest := want; len(rest) > 0; {
			n := min(100_000, len(rest))
			if _, err := w.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		ok(w.Close())
		content("stream", string(want))
		is(w.Close(), fs.ErrClosed)
		if _, err := w.Write([]byte("x")); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("Write after Close: %v", err)
		}
		if w, err := fsys.Create("no/such/dir"); err == nil {
			err = w.Close()
			is(err, fs.ErrNotExist)
		} else {
			is(err, fs.ErrNotExist)
		}
	})
}

// A file is read on over the next connection, unless it has changed.
func TestReadingWhileTheLinkBreaks(t *testing.T) {
	t.Parallel()
	opened := 0
	f := newFake(t, func(c *fakeConn) {
		if !c.shake() {
			return
		}
		opened++
		for blocks := 0; ; {
			m, ok := c.next()
			switch {
			case !ok:
				return
			case m.Method == "fs/getMetadata":
				size := 3 << 20
				if strings.HasSuffix(m.Params.Path, "changing") {
					size += opened
				}
				c.reply(m, object{"isFile": true, "size": size, "modifiedAtMs": 5})
			case m.Method == "fs/open", m.Method == "fs/close":
				c.reply(m, object{})
			case m.Method == "fs/readBlock":
				if blocks++; blocks == 2 {
					return
				}
				c.reply(m, object{"chunk": bytes.Repeat([]byte{byte('a' + m.Params.Offset>>20)}, 1<<20), "eof": m.Params.Offset == 2<<20})
			default:
				t.Errorf("%s", m.Method)
			}
		}
	})
	env := f.dial(nil)
	data, err := readSlowly(env.FS("/"), "same")
	if err != nil || len(data) != 3<<20 || data[0] != 'a' || data[1<<20] != 'b' || data[3<<20-1] != 'c' {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	if _, err := readSlowly(env.FS("/"), "changing"); err == nil || !strings.Contains(err.Error(), "changed while the connection was lost") {
		t.Errorf("changing: %v", err)
	}
}

// readSlowly reads a file with one block under way at a time.
func readSlowly(fsys fs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(struct{ io.Reader }{f})
}

// A listing that is not all of the directory is not taken for it.
func TestTruncatedListing(t *testing.T) {
	t.Parallel()
	f := newFake(t, func(c *fakeConn) {
		if !c.shake() {
			return
		}
		for {
			m, ok := c.next()
			switch {
			case !ok:
				return
			case m.Method == "fs/readDirectory":
				entries := []object{{"fileName": "b", "isFile": true}, {"fileName": "a", "isFile": true}}
				c.reply(m, object{"entries": entries, "truncated": true})
			case m.Method == "fs/getMetadata":
				c.reply(m, object{"isDirectory": true})
			default:
				t.Errorf("%s", m.Method)
			}
		}
	})
	fsys := f.dial(nil).FS("/")
	check := func(what string, entries []fs.DirEntry, err error) {
		t.Helper()
		if !errors.Is(err, client.ErrTruncated) || len(entries) != 2 || entries[0].Name() != "a" {
			t.Errorf("%s: %v, %v", what, entries, err)
		}
	}
	entries, err := fsys.ReadDir("dir")
	check("ReadDir", entries, err)
	dir, err := fsys.Open("dir")
	if err != nil {
		t.Fatal(err)
	}
	entries, err = dir.(fs.ReadDirFile).ReadDir(-1)
	check("an open directory", entries, err)
	if dir, err = fsys.Open("dir"); err != nil {
		t.Fatal(err)
	}
	for want := range 2 {
		if entries, err := dir.(fs.ReadDirFile).ReadDir(1); len(entries) != 1 || err != nil {
			t.Errorf("entry %d: %v, %v", want, entries, err)
		}
	}
	if entries, err := dir.(fs.ReadDirFile).ReadDir(1); len(entries) != 0 || !errors.Is(err, client.ErrTruncated) {
		t.Errorf("at the end: %v, %v", entries, err)
	}
	if err := fs.WalkDir(fsys, ".", func(_ string, _ fs.DirEntry, err error) error { return err }); !errors.Is(err, client.ErrTruncated) {
		t.Errorf("WalkDir: %v", err)
	}
}
