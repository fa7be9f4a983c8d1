//go:build unix

package client_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"execserver/client"
	"execserver/protocol"
)

// sameInfo compares what the client tells about a file with what the system tells.
func sameInfo(t *testing.T, what string, got, want fs.FileInfo) {
	t.Helper()
	if got.Mode() != want.Mode() || got.Size() != want.Size() || !got.ModTime().Equal(want.ModTime()) || got.IsDir() != want.IsDir() {
		t.Errorf("%s of %s: %v %d %v, want %v %d %v", what, want.Name(),
			got.Mode(), got.Size(), got.ModTime(), want.Mode(), want.Size(), want.ModTime())
	}
}

// special adds to a tree what is no regular file, and modes.
func special(t *testing.T, dir string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(
		os.Symlink("nowhere", at("dangling")), syscall.Mkfifo(at("fifo"), 0o600), syscall.Mknod(at("socket"), syscall.S_IFSOCK|0o640, 0),
		os.Chmod(at("empty"), 0o751|os.ModeSetuid), os.Chmod(at("a"), 0o770|os.ModeSticky), os.Chmod(at("pattern"), 0o400),
		os.Chtimes(at("hello.txt"), time.Time{}, time.Unix(1_000_000_000, 123_456_789)),
	); err != nil {
		t.Skipf("such files cannot be made here: %v", err)
	}
}

func TestStat(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, p place) {
		dir := tree(t)
		special(t, dir)
		fsys := env.FS(dir)
		list, err := fsys.ReadDir(".")
		if err != nil || len(list) == 0 {
			t.Fatalf("%d entries, %v", len(list), err)
		}
		for _, e := range list {
			itself, err := os.Lstat(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			link := itself.Mode()&fs.ModeSymlink != 0
			if target, err := os.Stat(filepath.Join(dir, e.Name())); err == nil {
				got, err := fsys.Stat(e.Name())
				switch {
				case err != nil:
					t.Error(err)
				case p.codex:
					want := fs.FileMode(0o644)
					if target.IsDir() {
						want = fs.ModeDir | 0o755
					} else if !target.Mode().IsRegular() {
						want |= fs.ModeIrregular
					}
					if got.Mode() != want || got.Size() != target.Size() || got.ModTime().UnixMilli() != target.ModTime().UnixMilli() {
						t.Errorf("%s: %v %d %v", e.Name(), got.Mode(), got.Size(), got.ModTime())
					}
				default:
					sameInfo(t, "Stat", got, target)
				}
			} else if _, err := fsys.Stat(e.Name()); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %v", e.Name(), err)
			}
			switch info, err := fsys.Lstat(e.Name()); {
			case p.codex && link:
				if e.Name() != "dangling" && !errors.As(err, new(*client.UnsupportedError)) {
					t.Errorf("Lstat of %s: %v, %v", e.Name(), info, err)
				}
			case err != nil:
				t.Error(err)
			case !p.codex:
				sameInfo(t, "Lstat", info, itself)
			}
			if !p.codex {
				info, err := e.Info()
				if err != nil || e.Type() != itself.Mode().Type() || e.IsDir() != itself.IsDir() {
					t.Errorf("%s is listed as %v, %v", e.Name(), e.Type(), err)
					continue
				}
				sameInfo(t, "the entry", info, itself)
			}
		}
		program, err := env.FS("/bin").Stat("ls")
		want, wantErr := os.Stat("/bin/ls")
		if err == nil && wantErr == nil && !p.codex {
			sameInfo(t, "Stat", program, want)
		}
	})
}

// TestChanges calls every method that changes metadata or links. The released server has
// none of them, and changes nothing.
func TestChanges(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, p place) {
		dir := tree(t)
		fsys := env.FS(dir)
		at := func(name string) string { return filepath.Join(dir, name) }
		moment := time.Unix(1_500_000_000, 987_654_321)
		create := func(name string, mode fs.FileMode) error {
			w, err := fsys.CreateMode(name, mode)
			if err != nil {
				return err
			}
			_, err = w.Write([]byte("new"))
			return errors.Join(err, w.Close())
		}
		before, err := os.Stat(at("hello.txt"))
		if err != nil {
			t.Fatal(err)
		}
		type try struct {
			what string
			err  error
		}
		tries := []try{
			{"Truncate", fsys.Truncate("hello.txt", 2)},
			{"Chmod", fsys.Chmod("hello.txt", 0o751|fs.ModeSetuid)},
			{"Chtimes", fsys.Chtimes("hello.txt", moment)},
			{"Symlink", fsys.Symlink("no/such/\xff place", "made")},
			{"Rename", fsys.Rename("empty", "a/renamed")},
			{"WriteFileMode", fsys.WriteFileMode("private", []byte("new"), 0o600)},
			{"CreateMode", create("stream", 0o640)},
			{"CreateMode of a file that exists", create("a/b/c.txt", 0o666)},
			{"MkdirMode", fsys.MkdirMode("shared", 0o777|fs.ModeSticky)},
		}
		_, err = fsys.ReadLink("link")
		tries = append(tries, try{"ReadLink", err})
		for _, try := range tries {
			path, ok := errors.AsType[*fs.PathError](try.err)
			switch {
			case p.codex && (!ok || path.Op == "" || !errors.Is(try.err, errors.ErrUnsupported) || !errors.As(try.err, new(*client.UnsupportedError))):
				t.Errorf("%s: %v", try.what, try.err)
			case !p.codex && try.err != nil:
				t.Errorf("%s: %v", try.what, try.err)
			}
		}
		if p.codex {
			if after, err := os.Stat(at("hello.txt")); err != nil || after.Mode() != before.Mode() || after.Size() != before.Size() {
				t.Errorf("the file is %v, %v", after, err)
			}
			return
		}
		mode := func(name string, want fs.FileMode) {
			t.Helper()
			if info, err := os.Lstat(at(name)); err != nil || info.Mode() != want {
				t.Errorf("%s: %v, %v", name, info.Mode(), err)
			}
		}
		mode("hello.txt", 0o751|fs.ModeSetuid)
		mode("private", 0o600)
		mode("stream", 0o640)
		mode("a/b/c.txt", 0o666)
		mode("shared", fs.ModeDir|0o777|fs.ModeSticky)
		mode("a/renamed", 0o644)
		if info, err := os.Stat(at("hello.txt")); err != nil || info.Size() != 2 || !info.ModTime().Equal(moment) {
			t.Errorf("%d bytes of %v, %v", info.Size(), info.ModTime(), err)
		}
		if text, err := os.Readlink(at("made")); err != nil || text != "no/such/\xff place" {
			t.Errorf("%q, %v", text, err)
		}
		if text, err := fsys.ReadLink("made"); err != nil || text != "no/such/\xff place" {
			t.Errorf("%q, %v", text, err)
		}
		for _, name := range []string{"stream", "a/b/c.txt", "private"} {
			if text, err := os.ReadFile(at(name)); err != nil || string(text) != "new" {
				t.Errorf("%s: %q, %v", name, text, err)
			}
		}
		for _, refused := range []struct {
			err, want error
		}{
			{fsys.Symlink("x", "link"), fs.ErrExist},
			{fsys.Chmod("missing", 0), fs.ErrNotExist},
			{fsys.Chmod("made", 0), fs.ErrNotExist}, // a link is followed
			{fsys.Truncate("a", 0), syscall.EISDIR},
			{fsys.Truncate("stream", -1), fs.ErrInvalid},
			{fsys.Rename("missing", "x"), fs.ErrNotExist},
			{fsys.Rename("stream", "../x"), fs.ErrInvalid},
			{fsys.MkdirMode("shared", 0o700), fs.ErrExist},
		} {
			if !errors.Is(refused.err, refused.want) {
				t.Errorf("%v is not %v", refused.err, refused.want)
			}
		}
		mode("shared", fs.ModeDir|0o777|fs.ModeSticky)
		// The protocol begins in 1970.
		if err := fsys.Chtimes("stream", time.Unix(-5, 0)); err != nil {
			t.Error(err)
		} else if info, err := os.Stat(at("stream")); err != nil || info.ModTime().Unix() != 0 {
			t.Errorf("%v, %v", info.ModTime(), err)
		}
	})
}

// withoutLinks is an FS that does not describe links.
type withoutLinks struct {
	fs.ReadDirFS
	fs.ReadFileFS
	fs.StatFS
	fs.SubFS
}

func (w withoutLinks) Open(name string) (fs.File, error) { return w.StatFS.Open(name) }

// testFS checks an FS. The released server describes no links.
func testFS(p place, fsys *client.FS, expected ...string) error {
	if p.codex {
		return fstest.TestFS(withoutLinks{fsys, fsys, fsys, fsys}, expected...)
	}
	return fstest.TestFS(fsys, expected...)
}

// TestListingWithoutRoomForDetails lists a directory of which an answer with details holds
// only a part.
func TestListingWithoutRoomForDetails(t *testing.T) {
	t.Parallel()
	f := newFake(t, func(c *fakeConn) {
		if !c.shake("fsMetadata") {
			return
		}
		for {
			m, ok := c.next()
			switch {
			case !ok:
				return
			case m.Method == protocol.MethodReadDirectory && m.Params.Details:
				c.reply(m, object{"entries": []object{{"fileName": "a", "isFile": true, "kind": "file", "mode": 0o600}}, "truncated": true})
			case m.Method == protocol.MethodReadDirectory:
				c.reply(m, object{"entries": []object{{"fileName": "b", "isFile": true}, {"fileName": "a", "isFile": true}}})
			default:
				t.Errorf("%s", m.Method)
			}
		}
	})
	list, err := f.dial(nil).FS("/").ReadDir("dir")
	if err != nil || len(list) != 2 || list[0].Name() != "a" || !list[1].Type().IsRegular() {
		t.Errorf("%v, %v", list, err)
	}
}
