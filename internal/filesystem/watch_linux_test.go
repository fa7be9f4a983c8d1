package filesystem_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"execserver/internal/filesystem"
	"execserver/internal/testkit"
)

func TestWatcherFollowsMoves(t *testing.T) {
	base := t.TempDir()
	dir := mkdir(t, base+"/root")
	put(t, dir+"/a/b/c/f", "")
	mkdir(t, dir+"/d")
	w := newWatcher(t, dir, filesystem.WatchOptions{})

	// A move within the tree: from now on everything in the directory has the new name.
	ok(t, "rename", os.Rename(dir+"/a/b", dir+"/d/e"))
	w.want("removed a/b", "created d/e")
	put(t, dir+"/d/e/c/f", "changed")
	w.want("modified d/e/c/f")
	ok(t, "rename", os.Rename(dir+"/d", dir+"/g"))
	w.want("removed d", "created g")
	put(t, dir+"/g/e/c/new", "")
	w.want("created g/e/c/new")

	// A move out of the tree: what happens there does not count.
	ok(t, "rename", os.Rename(dir+"/g/e", base+"/out"))
	w.want("removed g/e")
	put(t, base+"/out/c/f", "again")
	put(t, dir+"/g/marker", "")
	for _, e := range w.want("created g/marker") {
		if e != "created g/marker" && e != "modified g/marker" {
			t.Errorf("got %q", e)
		}
	}
	// A move back into the tree.
	ok(t, "rename", os.Rename(base+"/out", dir+"/back"))
	w.want("created back", "created back/c/f")
	put(t, dir+"/back/c/f", "and again")
	w.want("modified back/c/f")

	// One directory replaces another.
	mkdir(t, dir+"/x/y")
	mkdir(t, dir+"/empty")
	w.want("created x/y", "created empty")
	ok(t, "rename", unix.Rename(dir+"/x", dir+"/empty"))
	w.want("created empty")
	put(t, dir+"/empty/y/f", "")
	w.want("created empty/y/f")
	ok(t, "exchange", unix.Renameat2(unix.AT_FDCWD, dir+"/empty/y", unix.AT_FDCWD, dir+"/back", unix.RENAME_EXCHANGE))
	w.want("created empty/y", "created back")
	put(t, dir+"/empty/y/c/z", "")
	put(t, dir+"/back/z", "")
	w.want("created empty/y/c/z", "created back/z")
}

// TestWatcherReportsDirectoriesInOrder checks that the changes of a name come after the
// event of its directory, and that nothing is reported about names that went with a
// directory.
func TestWatcherReportsDirectoriesInOrder(t *testing.T) {
	base := t.TempDir()
	dir := mkdir(t, base+"/root")
	put(t, dir+"/again/f", "")
	mkdir(t, dir+"/left")
	w := newWatcher(t, dir, filesystem.WatchOptions{Debounce: time.Hour})

	ok(t, "chmod", os.Chmod(dir+"/left", 0o700))
	put(t, dir+"/left/f", "")
	ok(t, "rename", os.Rename(dir+"/left", base+"/out"))
	ok(t, "remove", os.RemoveAll(dir+"/again"))
	put(t, dir+"/again/f", "")
	put(t, dir+"/last", "")

	filesystem.FlushWatcher(t, w.Watcher, dir+"/last")
	got := w.want("created last")
	if want := []string{"removed left", "created again", "created again/f", "created last"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestWatcherDeepTree watches a tree that is deeper than any path is long. Each further
// level takes no longer than the one above, and the watcher reports what it cannot watch.
func TestWatcherDeepTree(t *testing.T) {
	dir := t.TempDir()
	levels := 900 // fewer than the descriptors that every system allows
	if testkit.RaceEnabled {
		levels = 300
	}
	name := strings.Repeat("d", 250)
	at, err := unix.Open(dir, unix.O_PATH, 0)
	ok(t, "open", err)
	for range levels {
		ok(t, "mkdir", unix.Mkdirat(at, name, 0o755))
		below, err := unix.Openat(at, name, unix.O_PATH, 0)
		ok(t, "open", err)
		unix.Close(at)
		at = below
	}
	defer unix.Close(at)
	t.Cleanup(func() {
		ok(t, "remove", filesystem.Remove(context.Background(), dir+"/"+name, filesystem.RemoveOptions{Recursive: true}))
	})
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	watched, err := filesystem.NewWatcher(ctx, dir, filesystem.WatchOptions{})
	ok(t, "watch", err)
	t.Cleanup(watched.Close)
	w := &watcher{Watcher: watched, t: t, root: dir}

	deepest := strings.Repeat("/"+name, levels)[1:]
	ok(t, "mkdir", unix.Mkdirat(at, "new", 0o755))
	w.want("created "+deepest+"/new", "overflow "+deepest)
}

func TestWatcherRootRemoved(t *testing.T) {
	dir := mkdir(t, t.TempDir()+"/root")
	w := newWatcher(t, dir, filesystem.WatchOptions{})
	ok(t, "remove", os.RemoveAll(dir))
	w.want("overflow .")
}

// TestWatcherIsPermitted watches a link that leads to a permitted directory, then to a forbidden one,
// and then to a permitted one again. The watcher reports no change in the forbidden one.
func TestWatcherIsPermitted(t *testing.T) {
	base := t.TempDir()
	link, forbidden := base+"/link", mkdir(t, base+"/forbidden")
	refused := make(chan struct{}, 100)
	permit := func(f *os.File) error {
		if path, err := os.Readlink(fmt.Sprint("/proc/self/fd/", f.Fd())); err != nil || path == forbidden {
			select {
			case refused <- struct{}{}:
			default:
			}
			return os.ErrPermission
		}
		return nil
	}
	lead := func(dir string) {
		t.Helper()
		ok(t, "link", os.Symlink(dir, link+"-new"))
		ok(t, "rename", os.Rename(link+"-new", link))
	}
	for _, path := range []string{forbidden, forbidden + "/none", forbidden + "/../link"} {
		if _, err := filesystem.NewWatcher(t.Context(), path, filesystem.WatchOptions{Permit: permit}); !errors.Is(err, os.ErrPermission) {
			t.Errorf("watch %s: %v", path, err)
		}
	}
	lead(mkdir(t, base+"/first"))
	w := newWatcher(t, link, filesystem.WatchOptions{Permit: permit})
	put(t, base+"/first/a", "")
	got := w.want("created a")
	for len(refused) > 0 {
		<-refused
	}
	lead(forbidden)
	got = append(got, w.want("overflow .")...)
	put(t, forbidden+"/b", "")
	<-refused // before or after the change
	<-refused
	lead(mkdir(t, base+"/second"))
	got = append(got, w.want("overflow .")...)
	put(t, base+"/second/c", "")
	got = append(got, w.want("created c")...)
	for _, event := range got {
		if strings.HasSuffix(event, " b") {
			t.Errorf("%q", got)
		}
	}
}

// TestWatcherLosesItsRoot makes the path of a watch lead elsewhere. The watcher reports
// an overflow, and from then on the changes at the path, but not those in the previous
// directory.
func TestWatcherLosesItsRoot(t *testing.T) {
	for name, c := range map[string]struct {
		lose   func(t *testing.T, base string) (old string) // base/a/b/root must lead elsewhere
		regain func(t *testing.T, base string)
	}{
		"renamed and made again": {
			func(t *testing.T, base string) string {
				ok(t, "rename", os.Rename(base+"/a/b/root", base+"/old"))
				return base + "/old"
			},
			func(t *testing.T, base string) { mkdir(t, base+"/a/b/root") },
		},
		"renamed and renamed back": {
			func(t *testing.T, base string) string {
				ok(t, "rename", os.Rename(base+"/a/b/root", base+"/old"))
				return base + "/old"
			},
			func(t *testing.T, base string) { ok(t, "rename", os.Rename(base+"/old", base+"/a/b/root")) },
		},
		"removed and made again": {
			func(t *testing.T, base string) string {
				ok(t, "remove", os.RemoveAll(base+"/a/b/root"))
				return ""
			},
			func(t *testing.T, base string) { mkdir(t, base+"/a/b/root") },
		},
		"exchanged": {
			func(t *testing.T, base string) string {
				mkdir(t, base+"/old")
				ok(t, "exchange", unix.Renameat2(unix.AT_FDCWD, base+"/a/b/root", unix.AT_FDCWD, base+"/old", unix.RENAME_EXCHANGE))
				return base + "/old"
			},
			func(*testing.T, string) {},
		},
		"ancestor moved and moved back": {
			func(t *testing.T, base string) string {
				ok(t, "rename", os.Rename(base+"/a", base+"/old"))
				return base + "/old/b/root"
			},
			func(t *testing.T, base string) { ok(t, "rename", os.Rename(base+"/old", base+"/a")) },
		},
		"ancestor moved and made again": {
			func(t *testing.T, base string) string {
				ok(t, "rename", os.Rename(base+"/a", base+"/old"))
				return base + "/old/b/root"
			},
			func(t *testing.T, base string) { mkdir(t, base+"/a/b/root") },
		},
		"link on the way leads elsewhere": {
			func(t *testing.T, base string) string {
				mkdir(t, base+"/other/b/root")
				symlink(t, "other", base+"/new")
				ok(t, "rename", os.Rename(base+"/new", base+"/link"))
				return base + "/a/b/root"
			},
			func(*testing.T, string) {},
		},
		"ancestor of where a link leads moved": {
			func(t *testing.T, base string) string {
				ok(t, "rename", os.Rename(base+"/a", base+"/old"))
				return base + "/old/b/root"
			},
			func(t *testing.T, base string) { ok(t, "rename", os.Rename(base+"/old", base+"/a")) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			put(t, base+"/a/b/root/d/f", "")
			symlink(t, "a", base+"/link")
			root := base + "/a/b/root"
			if strings.Contains(name, "link") {
				root = base + "/link/b/root"
			}
			w := newWatcher(t, root, filesystem.WatchOptions{})
			old := c.lose(t, base)
			all := w.want("overflow .")
			if old != "" {
				put(t, old+"/astray", "")
				mkdir(t, old+"/d/astray")
			}
			c.regain(t, base)
			// Only events show when the watcher watches the directory again.
			got := make(map[string]bool)
			testkit.WaitFor(t, time.Minute, func() error {
				put(t, root+"/new", "again")
				events, err := w.Events(ctxDone(context.Background()), w.cursor)
				for _, e := range events {
					w.cursor = e.Cursor
					all = append(all, w.describe(e))
					got[w.describe(e)] = true
				}
				if !got["created new"] && !got["modified new"] {
					return fmt.Errorf("the file is not reported: %v", err)
				}
				return nil
			})
			put(t, root+"/d2/f", "")
			all = append(all, w.want("created d2/f")...)
			for _, e := range all {
				if strings.Contains(e, "astray") {
					t.Errorf("reported a path that does not exist: %q", all)
				}
			}
		})
	}
}

// TestWatcherRecoversItsRoot loses its root again and again.
func TestWatcherRecoversItsRoot(t *testing.T) {
	base := t.TempDir()
	dir := mkdir(t, base+"/root")
	w := newWatcher(t, dir, filesystem.WatchOptions{Debounce: time.Millisecond})
	descriptors := testkit.Descriptors(t)
	for i := range 100 {
		ok(t, "rename", os.Rename(dir, base+"/old"+itoa(i)))
		mkdir(t, dir)
	}
	w.want("overflow .")
	testkit.WaitFor(t, time.Minute, func() error {
		put(t, dir+"/f", "")
		events, err := w.Events(ctxDone(context.Background()), w.cursor)
		for _, e := range events {
			w.cursor = e.Cursor
			if e.Path == dir+"/f" {
				return nil
			}
		}
		return fmt.Errorf("the file is not reported: %v", err)
	})
	if n := testkit.Descriptors(t); n > descriptors {
		t.Errorf("%d descriptors, %d before", n, descriptors)
	}
}

func TestWatcherFollowsALinkToItsRoot(t *testing.T) {
	dir := t.TempDir()
	mkdir(t, dir+"/d/e")
	w := newWatcher(t, symlink(t, "d", dir+"/link"), filesystem.WatchOptions{})
	put(t, dir+"/d/e/f", "")
	w.want("created e/f")
	symlink(t, "..", dir+"/d/up")
	put(t, dir+"/d/g", "")
	w.want("created up", "created g")
}

func TestSystemWatcherUnreadableDirectory(t *testing.T) {
	testkit.System(t, testkit.Root)
	dir := sharedDir(t)
	ok(t, "chmod", os.Chmod(mkdir(t, dir+"/closed"), 0o700))
	mkdir(t, dir+"/open")
	asNobody(t, func() {
		w := newWatcher(t, dir, filesystem.WatchOptions{})
		w.want("overflow closed")
	})
}

// TestSystemWatcherMountLoop mounts a part of the tree within itself, which would be an endless
// tree.
func TestSystemWatcherMountLoop(t *testing.T) {
	dir := t.TempDir()
	mkdir(t, dir+"/a/b")
	mount(t, dir, dir+"/a/b", "", unix.MS_BIND, "")
	within(t, "NewWatcher", func() {
		w := newWatcher(t, dir, filesystem.WatchOptions{})
		put(t, dir+"/a/f", "")
		w.want("created a/f")
	})
}

func TestWatcherLosesNothingSilently(t *testing.T) {
	dir := t.TempDir()
	w := newWatcher(t, dir, filesystem.WatchOptions{History: 100_000})
	// The test creates directories faster than the watcher can enter them.
	const n = 60
	for i := range n {
		put(t, dir+"/"+itoa(i)+"/x/y/f", "")
	}
	var want []string
	for i := range n {
		want = append(want, "created "+itoa(i)+"/x/y/f")
	}
	w.want(want...)
}

// TestWatcherLosesNothingWhileLooking changes a directory while the watcher examines a
// new directory in it, and so examines it again. The kernel loses the events of the time
// in which a watch is replaced.
func TestWatcherLosesNothingWhileLooking(t *testing.T) {
	dir := testkit.MemoryDir(t)
	w := newWatcher(t, dir, filesystem.WatchOptions{History: 100_000, MaxDirectories: 10_000})
	const n = 4000
	var want []string
	for i := range n {
		want = append(want, "created f"+itoa(i), "created d"+itoa(i))
	}
	var wg sync.WaitGroup
	for _, make := range []func(i string) error{
		func(i string) error { return unix.Mkdir(dir+"/d"+i, 0o755) },
		func(i string) error { return unix.Mknod(dir+"/f"+i, unix.S_IFREG, 0) },
	} {
		wg.Go(func() {
			for i := range n {
				if err := make(itoa(i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	seen := make(map[string]bool)
	testkit.WaitFor(t, time.Minute, func() error {
		events, err := w.Events(ctxDone(context.Background()), w.cursor)
		for _, e := range events {
			w.cursor = e.Cursor
			seen[w.describe(e)] = true
		}
		for _, s := range want {
			if !seen[s] {
				return fmt.Errorf("%q is missing after %d events, %w", s, w.cursor, err)
			}
		}
		return nil
	})
}

// TestWatcherQueueOverflow causes more events than the kernel's queue holds, also about
// directories: 16,384, besides the 2,048 that the watcher may have read before it is held.
func TestWatcherQueueOverflow(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a second")
	}
	dir := testkit.MemoryDir(t)
	w := newWatcher(t, dir, filesystem.WatchOptions{})
	stop := filesystem.HoldWatcher(w.Watcher)
	for range 12_000 {
		ok(t, "mknod", unix.Mknod(dir+"/x", unix.S_IFREG, 0))
		ok(t, "unlink", unix.Unlink(dir+"/x"))
	}
	mkdir(t, dir+"/unseen/d")
	stop()
	w.want("overflow .")
	put(t, dir+"/unseen/d/f", "")
	w.want("created unseen/d/f")
	_, err := w.Events(ctxDone(context.Background()), w.Cursor())
	if err == nil {
		t.Error("there is more")
	}
}

// TestWatcherModel checks that a reader that relies on events alone ends up with the
// right picture of the tree.
func TestWatcherModel(t *testing.T) {
	for seed := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, 1))
		dir := t.TempDir()
		w := newWatcher(t, dir, filesystem.WatchOptions{Debounce: time.Millisecond})
		done := make(chan struct{})
		go func() {
			defer close(done)
			pick := func() string {
				path := dir
				for range 1 + rng.IntN(4) {
					path += "/" + string(rune('a'+rng.IntN(4)))
				}
				return path
			}
			for range 400 {
				switch a, b := pick(), pick(); rng.IntN(8) {
				case 0, 1:
					os.MkdirAll(a, 0o777)
				case 2, 3:
					os.WriteFile(a, nil, 0o666)
				case 4:
					os.RemoveAll(a)
				case 5, 6:
					unix.Rename(a, b)
				case 7:
					unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
				}
			}
		}()
		known := map[string]bool{}
		learn := func(path string) {
			filepath.WalkDir(path, func(p string, _ fs.DirEntry, err error) error {
				if err == nil && p != dir {
					known[p] = true
				}
				return nil
			})
		}
		marker := dir + "/marker"
		var cursor uint64
		follow := func() (last bool) {
			ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
			defer cancel()
			events, err := w.Events(ctx, cursor)
			ok(t, "events", err)
			for _, e := range events {
				cursor = e.Cursor
				if e.Kind == filesystem.Overflow {
					t.Errorf("overflow: %q", e.Unwatched)
					continue
				}
				for p := range known {
					if p == e.Path || strings.HasPrefix(p, e.Path+"/") {
						delete(known, p)
					}
				}
				if e.Kind != filesystem.Removed {
					learn(e.Path)
				}
				last = last || e.Path == marker && e.Kind == filesystem.Removed
			}
			return last
		}
		go func() { // the last event
			<-done
			os.WriteFile(marker, nil, 0o666)
			os.Remove(marker)
		}()
		for !follow() {
		}
		want := known
		known = map[string]bool{}
		learn(dir)
		if diff := cmp.Diff(known, want); diff != "" {
			t.Fatalf("seed %d: what the reader knows (+) is not what there is (-):\n%s", seed, diff)
		}
		w.Close()
	}
}
