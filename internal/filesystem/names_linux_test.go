package filesystem_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/filesystem"
	"execserver/internal/testkit"
)

// TestCreateDirectoryTable compares with the results of the released server, for every
// combination of options.
func TestCreateDirectoryTable(t *testing.T) {
	const loop = "too many levels of symbolic links (os error 40)"
	type row struct{ recursive, recursiveNoFollow, plain, plainNoFollow string }
	for path, want := range map[string]row{
		"d":       {"", "", exists, exists},
		"ld":      {"", notDir, exists, exists},
		"f":       {exists, notDir, exists, exists},
		"lf":      {exists, notDir, exists, exists},
		"dang":    {exists, notDir, exists, exists},
		"fifo":    {exists, notDir, exists, exists},
		"loop":    {exists, notDir, exists, exists},
		"ld/new":  {"", notDir, "", notDir},
		"f/x":     {notDir, notDir, notDir, notDir},
		"new/x":   {"", "", notFound, notFound},
		"dang/x":  {exists, notDir, notFound, notDir},
		"loop/x":  {loop, notDir, loop, notDir},
		"new/a/b": {"", "", notFound, notFound},
	} {
		for i, text := range []string{want.recursive, want.recursiveNoFollow, want.plain, want.plainNoFollow} {
			dir := t.TempDir()
			put(t, dir+"/f", "")
			mkdir(t, dir+"/d")
			mkfifo(t, dir+"/fifo")
			symlink(t, "f", dir+"/lf")
			symlink(t, "d", dir+"/ld")
			symlink(t, "nope", dir+"/dang")
			symlink(t, "loop", dir+"/loop")
			options := filesystem.CreateDirectoryOptions{Recursive: i < 2}
			if i%2 == 1 {
				options.Links = filesystem.NoFollow
			}
			err := filesystem.CreateDirectory(context.Background(), dir+"/"+path, options)
			if text == "" {
				if err != nil {
					t.Errorf("%s %+v: %v", path, options, err)
				}
				continue
			}
			kind := filesystem.Other
			if text == notFound {
				kind = filesystem.NotFound
			}
			wantError(t, path, err, kind, text)
		}
	}
}

func TestRemoveTable(t *testing.T) {
	const loop = "too many levels of symbolic links (os error 40)"
	for path, want := range map[string]struct{ follow, noFollow string }{
		"nope":   {notFound, notFound},
		"nope/x": {notFound, notFound},
		"f/x":    {notDir, notDir},
		"loop/x": {loop, notDir},
		"dang/x": {notFound, notDir},
		"ld/sub": {"", notDir},
		"lf":     {"", "path contains a symbolic link"},
		"fifo":   {"", ""},
		"sock":   {"", ""},
		"d/sub":  {"", ""},
	} {
		for _, options := range []filesystem.RemoveOptions{
			{},
			{Recursive: true},
			{Force: true},
			{Links: filesystem.NoFollow},
			{Links: filesystem.NoFollow, Recursive: true},
			{Links: filesystem.NoFollow, Force: true},
		} {
			dir := t.TempDir()
			putEachKind(t, dir, "")
			text := want.follow
			if options.Links == filesystem.NoFollow {
				text = want.noFollow
			}
			err := filesystem.Remove(context.Background(), dir+"/"+path, options)
			switch {
			case text == "" || options.Force && text == notFound:
				if err != nil {
					t.Errorf("%s %+v: %v", path, options, err)
				}
			case text == notFound:
				wantError(t, path, err, filesystem.NotFound, text)
			case strings.HasPrefix(text, "path "):
				wantError(t, path, err, filesystem.InvalidInput, text)
			default:
				wantError(t, path, err, filesystem.Other, text)
			}
			if _, err := os.Lstat(dir + "/f"); err != nil {
				t.Errorf("%s: the target of a link is gone", path)
			}
		}
	}
	err := filesystem.Remove(context.Background(), "/", filesystem.RemoveOptions{Recursive: true, Force: true})
	wantError(t, "/", err, filesystem.Other, "device or resource busy (os error 16)")
}

// TestRemoveDeepTree removes a tree that is deeper than a path may be long, and than the
// process may have files open.
func TestRemoveDeepTree(t *testing.T) {
	dir := t.TempDir()
	const depth = 250
	name := strings.Repeat("d", 40)
	fd, err := unix.Open(mkdir(t, dir+"/deep"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for range depth {
		ok(t, "descend", err)
		ok(t, "mkdir", unix.Mkdirat(fd, name, 0o777))
		f, err := unix.Openat(fd, "f", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o666)
		ok(t, "create", err)
		unix.Close(f)
		var child int
		child, err = unix.Openat(fd, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		unix.Close(fd)
		fd = child
		ok(t, "descend", err)
	}
	unix.Close(fd)
	before := testkit.Descriptors(t)
	ok(t, "remove", filesystem.Remove(context.Background(), dir+"/deep", filesystem.RemoveOptions{Recursive: true}))
	leftovers(t, dir)
	if after := testkit.Descriptors(t); after != before {
		t.Errorf("%d descriptors open, %d before", after, before)
	}
}

// TestRemoveEndsWhileFilesAreCreated checks that Remove ends although another
// program creates files all the time.
func TestRemoveEndsWhileFilesAreCreated(t *testing.T) {
	for name, create := range map[string]func(dir string, i int) error{
		"files":       func(dir string, i int) error { return unix.Mknod(dir+"/f"+itoa(i), unix.S_IFREG|0o600, 0) },
		"directories": func(dir string, i int) error { return os.MkdirAll(dir+"/d"+itoa(i)+"/a/b/c", 0o700) },
		"files below": func(dir string, i int) error {
			_ = unix.Mkdir(dir+"/d", 0o700)
			return unix.Mknod(dir+"/d/f"+itoa(i), unix.S_IFREG|0o600, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := mkdir(t, testkit.MemoryDir(t)+"/tree")
			stop := make(chan struct{})
			var creators sync.WaitGroup
			for n := range 3 {
				creators.Go(func() {
					for i := n; ; i += 3 {
						select {
						case <-stop:
							return
						default:
							_ = create(dir, i) // its directory may be gone
						}
					}
				})
			}
			testkit.WaitFor(t, time.Minute, func() error {
				names, err := os.ReadDir(dir)
				if err == nil && len(names) == 0 {
					err = errors.New("nothing is created")
				}
				return err
			})
			ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
			defer cancel()
			err := filesystem.Remove(ctx, dir, filesystem.RemoveOptions{Recursive: true})
			close(stop)
			creators.Wait()
			if err != nil { // Remove may also have been quick enough
				wantError(t, "remove", err, filesystem.Other, "directory not empty (os error 39)")
			}
		})
	}
}

// TestSystemRemoveEmptiesWhatItCannotUnlink checks that Remove empties a directory that it may
// not unlink, as rm -rf does.
func TestSystemRemoveEmptiesWhatItCannotUnlink(t *testing.T) {
	testkit.System(t, testkit.Root)
	closed := func(t *testing.T, path string) {
		t.Helper()
		ok(t, "chown", os.Chown(mkdir(t, path), 65534, 65534))
	}
	for name, prepare := range map[string]func(t *testing.T, dir string) (empty string){
		"the directory itself": func(t *testing.T, dir string) string {
			closed(t, dir+"/tree")
			return dir + "/tree"
		},
		"one below": func(t *testing.T, dir string) string {
			mkdir(t, dir+"/tree")
			closed(t, dir+"/tree/d")
			return dir + "/tree/d"
		},
		"sticky directory": func(t *testing.T, dir string) string {
			ok(t, "chmod", os.Chmod(mkdir(t, dir+"/tree"), 0o777|os.ModeSticky))
			ok(t, "chmod", os.Chmod(mkdir(t, dir+"/tree/d"), 0o777))
			return dir + "/tree/d"
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := sharedDir(t)
			empty := prepare(t, dir)
			put(t, empty+"/f", "")
			put(t, empty+"/sub/g", "")
			ok(t, "chown", os.Chown(empty+"/sub", 65534, 65534))
			asNobody(t, func() {
				err := filesystem.Remove(context.Background(), dir+"/tree", filesystem.RemoveOptions{Recursive: true})
				if kind, _ := filesystem.Classify(err); err == nil || kind != filesystem.InvalidInput {
					t.Errorf("remove: %v", err)
				}
			})
			leftovers(t, empty)
		})
	}
	t.Run("mount point", func(t *testing.T) {
		dir := t.TempDir()
		mount(t, "tmpfs", mkdir(t, dir+"/tree/mounted"), "tmpfs", 0, "")
		put(t, dir+"/tree/mounted/f", "")
		err := filesystem.Remove(context.Background(), dir+"/tree", filesystem.RemoveOptions{Recursive: true})
		wantError(t, "remove", err, filesystem.Other, "device or resource busy (os error 16)")
		leftovers(t, dir+"/tree/mounted")
	})
}

func TestSystemRemoveContinuesAfterAnError(t *testing.T) {
	testkit.System(t, testkit.Root)
	dir := sharedDir(t)
	ok(t, "chmod", os.Chmod(dir, 0o777))
	ok(t, "chmod", os.Chmod(mkdir(t, dir+"/tree"), 0o777))
	for _, name := range []string{"a", "b", "c"} {
		put(t, dir+"/tree/"+name+"/f", "")
		if name != "b" {
			ok(t, "chmod", os.Chmod(dir+"/tree/"+name, 0o777))
		}
	}
	asNobody(t, func() {
		err := filesystem.Remove(context.Background(), dir+"/tree", filesystem.RemoveOptions{Recursive: true})
		wantError(t, "remove", err, filesystem.InvalidInput, "permission denied (os error 13)")
	})
	leftovers(t, dir+"/tree", "b")
	leftovers(t, dir+"/tree/b", "f")
}

// TestRemoveStaysInTheTree replaces a directory in the tree by a link to one outside,
// again and again, during the removal.
func TestRemoveStaysInTheTree(t *testing.T) {
	dir := t.TempDir()
	outside := dir + "/outside"
	for _, name := range []string{"a", "b", "c", "d"} {
		put(t, outside+"/"+name, "safe")
	}
	var stop atomic.Bool
	done := make(chan struct{})
	mkdir(t, dir+"/tree/x")
	symlink(t, outside, dir+"/spare")
	go func() {
		defer close(done)
		for !stop.Load() {
			unix.Renameat2(unix.AT_FDCWD, dir+"/tree/x", unix.AT_FDCWD, dir+"/spare", unix.RENAME_EXCHANGE)
		}
	}()
	deadline := time.Now().Add(300 * time.Millisecond)
	for time.Now().Before(deadline) {
		os.MkdirAll(dir+"/tree/x", 0o777)
		os.WriteFile(dir+"/tree/x/f", nil, 0o666)
		filesystem.Remove(context.Background(), dir+"/tree", filesystem.RemoveOptions{Recursive: true, Force: true})
		if _, err := os.Lstat(dir + "/spare"); err != nil {
			os.Symlink(outside, dir+"/spare")
		}
	}
	stop.Store(true)
	<-done
	entries, err := os.ReadDir(outside)
	safe := 0
	for _, e := range entries {
		if e.Name() != "f" {
			safe++
		}
	}
	if err != nil || safe != 4 {
		t.Errorf("outside holds %d of 4 files, %v", safe, err)
	}
}

func TestCopyTable(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return dir + "/" + name }
	put(t, at("d/f"), "1")
	ok(t, "chmod", unix.Chmod(at("d/f"), 0o4751))
	ok(t, "chmod", os.Chmod(mkdir(t, at("d/s")), 0o700))
	symlink(t, "f", at("d/l"))
	mkfifo(t, at("d/p"))
	socket(t, at("d/q"))
	symlink(t, "d", at("ld"))
	symlink(t, "nope", at("dang"))
	mkfifo(t, at("p"))
	mkdir(t, at("e"))
	put(t, at("g"), "2")
	symlink(t, "g2", at("lg2"))
	put(t, at("g2"), "x")
	put(t, at("x/y"), "")
	mkdir(t, at("y/y"))
	put(t, at("z/y"), "")

	const special = "fs/copy only supports regular files, directories, and symlinks"
	for _, tt := range []struct {
		from, to string
		flat     bool // not recursive
		kind     filesystem.Kind
		text     string
	}{
		{from: "d", to: "n1"},
		{from: "d", to: "n1", kind: filesystem.Other, text: exists}, // at the first link
		{from: "d", to: "deep/er/n"},
		{from: "d/f", to: "none/x", kind: filesystem.NotFound, text: notFound},
		{from: "d/f", to: "e", kind: filesystem.Other, text: isDir},
		{from: "ld", to: "n2"},
		{from: "ld", to: "n2", kind: filesystem.Other, text: exists},
		{from: "ld", to: "e", kind: filesystem.Other, text: exists},
		{from: "d/l", to: "none/x", kind: filesystem.NotFound, text: notFound},
		{from: "dang", to: "n3"},
		{from: "p", to: "n4", kind: filesystem.InvalidInput, text: special},
		{from: "d/q", to: "n4", kind: filesystem.InvalidInput, text: special},
		{from: "d", to: "n5", flat: true, kind: filesystem.InvalidInput, text: "fs/copy requires recursive: true when sourcePath is a directory"},
		{from: "d", to: "g", kind: filesystem.Other, text: exists},
		{from: "d/s", to: "lg2", kind: filesystem.Other, text: exists},
		{from: "d/s", to: "dang", kind: filesystem.Other, text: exists},
		{from: "d/s", to: "d"},
		{from: "none", to: "x", kind: filesystem.NotFound, text: notFound},
		{from: "d/f/x", to: "n6", kind: filesystem.Other, text: notDir},
		{from: "d/f", to: "d/f/x", kind: filesystem.Other, text: notDir},
		{from: "d/f", to: "dang", flat: true},
		{from: "d/f", to: "lg2", flat: true},
		{from: "x", to: "y", kind: filesystem.Other, text: isDir},
		{from: "y", to: "z", kind: filesystem.Other, text: exists},
	} {
		var skipped []string
		err := filesystem.Copy(context.Background(), at(tt.from), at(tt.to), filesystem.CopyOptions{
			Recursive: !tt.flat,
			Skipped:   func(path string) { skipped = append(skipped, filepath.Base(path)) },
		})
		what := tt.from + " to " + tt.to
		if tt.text != "" {
			wantError(t, what, err, tt.kind, tt.text)
			continue
		}
		ok(t, what, err)
		if tt.from == "d" && strings.Join(skipped, " ") != "p q" && strings.Join(skipped, " ") != "q p" {
			t.Errorf("%s skipped %q", what, skipped)
		}
	}
	for name, want := range map[string]fs.FileMode{
		"n1":   fs.ModeDir | 0o755,
		"n1/s": fs.ModeDir | 0o755,
		"n1/f": fs.ModeSetuid | 0o751,
		"nope": fs.ModeSetuid | 0o751,
		"g2":   fs.ModeSetuid | 0o751,
		"lg2":  fs.ModeSymlink | 0o777,
	} {
		if info, err := os.Lstat(at(name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", name, info.Mode(), err, want)
		}
	}
	leftovers(t, at("n1"), "f", "l", "s")
}

func TestCopySpecialContent(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()

	// Holes stay holes, wherever they are.
	f, err := os.Create(dir + "/sparse")
	ok(t, "create", err)
	defer f.Close()
	for _, offset := range []int64{1 << 20, 8 << 20} {
		_, err := f.WriteAt([]byte("data"), offset)
		ok(t, "write", err)
	}
	ok(t, "truncate", f.Truncate(16<<20))
	ok(t, "copy", filesystem.Copy(ctx, dir+"/sparse", dir+"/copy", filesystem.CopyOptions{}))
	if st := stat(t, dir+"/copy"); st.Size != 16<<20 || st.Blocks > 1024 {
		t.Errorf("copy of %d bytes takes %d blocks", st.Size, st.Blocks)
	}
	if want, got := content(t, dir+"/sparse"), content(t, dir+"/copy"); got != want {
		t.Error("the copy differs")
	}
	ok(t, "truncate", f.Truncate(0))
	ok(t, "truncate", f.Truncate(1<<20))
	ok(t, "copy", filesystem.Copy(ctx, dir+"/sparse", dir+"/copy", filesystem.CopyOptions{}))
	if st := stat(t, dir+"/copy"); st.Size != 1<<20 {
		t.Errorf("copy of nothing but a hole has %d bytes", st.Size)
	}

	// Files that report a size of 0, or an invented one.
	for _, name := range []string{"/proc/self/status", "/sys/kernel/mm/transparent_hugepage/enabled"} {
		want, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		ok(t, "copy", filesystem.Copy(ctx, name, dir+"/pseudo", filesystem.CopyOptions{}))
		if got := content(t, dir+"/pseudo"); len(got) == 0 || strings.Contains(got, "\x00") || got[:4] != string(want[:4]) {
			t.Errorf("%s: %q", name, got)
		}
	}
	// A device as destination keeps its mode.
	before := stat(t, "/dev/null")
	ok(t, "copy", filesystem.Copy(ctx, put(t, dir+"/f", "x"), "/dev/null", filesystem.CopyOptions{}))
	if after := stat(t, "/dev/null"); after.Mode != before.Mode {
		t.Errorf("/dev/null: mode %o, was %o", after.Mode, before.Mode)
	}
}

// TestCopyDoesNotCopyItsCopy copies to a destination with a link that leads back into the
// source.
func TestCopyDoesNotCopyItsCopy(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/src/a/f", "x")
	mkdir(t, dir+"/src/a/deeper")
	symlink(t, "../src/a/deeper", mkdir(t, dir+"/dst")+"/a")
	err := filesystem.Copy(context.Background(), dir+"/src", dir+"/dst", filesystem.CopyOptions{Recursive: true})
	wantError(t, "copy", err, filesystem.InvalidInput, "fs/copy cannot copy a directory to itself or one of its descendants")
}
