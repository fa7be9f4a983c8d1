package filesystem_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/filesystem"
	"execserver/internal/testkit"
)

// missingWatch is a MissingWatch with its notifications on a channel.
type missingWatch struct {
	*filesystem.MissingWatch
	t    *testing.T
	told chan uint64
	id   uint64

	mounts int // the mount table; shows whether another test changes it
}

func newMissingWatch(t *testing.T) *missingWatch {
	table, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	ok(t, "open", err)
	t.Cleanup(func() { unix.Close(table) })
	w := &missingWatch{t: t, told: make(chan uint64, 10), mounts: table}
	w.MissingWatch = filesystem.NewMissingWatch(func(id uint64) { w.told <- id })
	t.Cleanup(w.Close)
	return w
}

// Watch claims and arms at once.
func (w *missingWatch) Watch(ctx context.Context, id uint64, missing []string, present string) (begin func(), watching bool) {
	if !w.Claim(id) {
		return nil, false
	}
	begin, watching, err := w.Arm(ctx, id, missing, present)
	ok(w.t, "arm", err)
	return begin, watching
}

// next watches under the next id and reports whether Arm accepted it.
func (w *missingWatch) next(missing []string, present string) bool {
	w.t.Helper()
	w.id++
	begin, watching := w.Watch(context.Background(), w.id, missing, present)
	if watching {
		begin()
	}
	return watching
}

func (w *missingWatch) wantTold(what string) {
	w.t.Helper()
	select {
	case id := <-w.told:
		if id != w.id {
			w.t.Errorf("%s: notified of %d, want %d", what, id, w.id)
		}
	case <-time.After(testkit.Patience):
		w.t.Fatalf("%s: no notification", what)
	}
}

// wantSilence checks that there was no notification. It calls then, which must cause one:
// notifications keep the order of events.
func (w *missingWatch) wantSilence(what string, then func()) {
	w.t.Helper()
	select {
	case id := <-w.told:
		if n, _ := unix.Poll([]unix.PollFd{{Fd: int32(w.mounts), Events: unix.POLLPRI}}, 0); n > 0 {
			w.t.Skip("somebody else mounts file systems")
		}
		w.t.Fatalf("%s: notified of %d", what, id)
	case <-time.After(50 * time.Millisecond):
	}
	then()
	w.wantTold("after " + what)
}

func TestSystemMissingWatchFires(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, dir string){
		"file":              func(t *testing.T, dir string) { put(t, dir+"/missing", "") },
		"directory":         func(t *testing.T, dir string) { mkdir(t, dir+"/missing") },
		"dangling link":     func(t *testing.T, dir string) { symlink(t, "none", dir+"/missing") },
		"rename into place": func(t *testing.T, dir string) { ok(t, "rename", os.Rename(dir+"/other", dir+"/missing")) },
		"hard link":         func(t *testing.T, dir string) { ok(t, "link", os.Link(dir+"/present", dir+"/missing")) },
		"first ancestor":    func(t *testing.T, dir string) { mkdir(t, dir+"/a/b/new") },
		"ancestor renamed":  func(t *testing.T, dir string) { ok(t, "rename", os.Rename(dir+"/a", dir+"/c")) },
		"ancestor removed":  func(t *testing.T, dir string) { ok(t, "remove", os.RemoveAll(dir+"/a")) },
		"present written":   func(t *testing.T, dir string) { put(t, dir+"/present", "x") },
		"present touched":   func(t *testing.T, dir string) { ok(t, "touch", os.Chtimes(dir+"/present", time.Now(), time.Now())) },
		"present removed":   func(t *testing.T, dir string) { ok(t, "remove", os.Remove(dir+"/present")) },
		"present replaced":  func(t *testing.T, dir string) { ok(t, "rename", os.Rename(dir+"/other", dir+"/present")) },
		"mount elsewhere":   func(t *testing.T, dir string) { mountTmpfs(t, "") },
		"mount over an ancestor": func(t *testing.T, dir string) {
			mount(t, "tmpfs", dir+"/a", "tmpfs", 0, "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			mkdir(t, dir+"/a/b")
			put(t, dir+"/other", "")
			put(t, dir+"/present", "")
			w := newMissingWatch(t)
			if !w.next([]string{dir + "/missing", dir + "/a/b/new/deep", dir + "/a/b/new"}, dir+"/present") {
				t.Fatal("not watching")
			}
			change(t, dir)
			w.wantTold(name)
			mkdir(t, dir+"/a/b/new/deep") // notifies only once
			select {
			case id := <-w.told:
				t.Errorf("notified again of %d", id)
			case <-time.After(20 * time.Millisecond):
			}
		})
	}
}

func TestMissingWatchStaysSilent(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/present/f", "")
	mkdir(t, dir+"/a")
	w := newMissingWatch(t)
	if !w.next([]string{dir + "/missing", dir + "/a/missing"}, dir+"/present") {
		t.Fatal("not watching")
	}
	put(t, dir+"/sibling", "x")
	ok(t, "rename", os.Rename(dir+"/sibling", dir+"/moved"))
	ok(t, "remove", os.Remove(dir+"/moved"))
	put(t, dir+"/present/g", "x")
	ok(t, "remove", os.Remove(dir+"/present/f"))
	content(t, dir+"/present/g")
	put(t, dir+"/a/b", "x")
	w.wantSilence("changes nearby", func() { mkdir(t, dir+"/missing") })
}

func TestMissingWatchRefuses(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/f", "")
	symlink(t, "f", dir+"/link")
	symlink(t, "none", dir+"/dangling")
	symlink(t, ".", dir+"/here")
	var many []string
	for i := range 65 {
		many = append(many, fmt.Sprint(dir, "/", i))
	}
	deep := func(directories int) string {
		return dir + strings.Repeat("/q", directories-strings.Count(dir, "/")-1) + "/f"
	}
	w := newMissingWatch(t)
	for _, tt := range []struct {
		name     string
		missing  []string
		present  string
		watching bool
	}{
		{"missing", []string{dir + "/x"}, "", true},
		{"twice the same", []string{dir + "/x", dir + "/x"}, "", true},
		{"nothing", nil, "", false},
		{"exists", []string{dir + "/x", dir + "/f"}, "", false},
		{"dangling link", []string{dir + "/dangling"}, "", false},
		{"through a file", []string{dir + "/f/x"}, "", false},
		{"through a link", []string{dir + "/here/x"}, "", false},
		{"through a dangling link", []string{dir + "/dangling/x"}, "", false},
		{"root", []string{"/"}, "", false},
		{"relative", []string{"x"}, "", false},
		{"present", []string{dir + "/x"}, dir + "/f", true},
		{"present is missing", []string{dir + "/x"}, dir + "/none", false},
		{"present is a link", []string{dir + "/x"}, dir + "/link", false},
		{"present behind a link", []string{dir + "/x"}, dir + "/here/f", false},
		{"64 paths", many[:64], "", true},
		{"65 paths", many, "", false},
		{"64 directories", []string{deep(64)}, "", true},
		{"65 directories", []string{deep(65)}, "", false},
	} {
		if got := w.next(tt.missing, tt.present); got != tt.watching {
			t.Errorf("%s: watching %v, want %v", tt.name, got, tt.watching)
		}
	}
}

func TestMissingWatchSlot(t *testing.T) {
	dir := t.TempDir()
	ctx := context.Background()
	w := newMissingWatch(t)
	try := func(id uint64, name string) bool {
		begin, watching := w.Watch(ctx, id, []string{filepath.Join(dir, name)}, "")
		if watching {
			begin()
		}
		return watching
	}
	if try(0, "a") {
		t.Error("id 0 was accepted")
	}
	if !try(5, "a") || try(5, "b") || try(4, "b") {
		t.Error("ids need not grow")
	}
	put(t, dir+"/a", "") // the stale calls have not changed the watch
	w.id = 5
	w.wantTold("first watch")

	if !try(6, "b") || try(7, "a") || try(7, "c") { // a exists, and 7 is used up
		t.Error("refusal does not use up the id")
	}
	put(t, dir+"/b", "")
	if !try(8, "c") {
		t.Error("refused")
	}
	if _, watching := w.Watch(ctx, 9, nil, ""); watching {
		t.Error("watching nothing")
	}
	put(t, dir+"/c", "")
	if !try(10, "d") {
		t.Error("refused")
	}
	w.id = 10
	w.wantSilence("watches that were replaced", func() { put(t, dir+"/d", "") })

	before := testkit.Descriptors(t)
	if !try(11, "e") {
		t.Error("refused")
	}
	w.Close()
	put(t, dir+"/e", "")
	if try(12, "f") {
		t.Error("accepted after Close")
	}
	select {
	case id := <-w.told:
		t.Errorf("notified of %d after Close", id)
	default:
	}
	if after := testkit.Descriptors(t); after != before {
		t.Errorf("%d descriptors open, %d before", after, before)
	}
}

// TestMissingWatchOvertaken checks that the call that was claimed last counts, even if
// calls are armed in another order.
func TestMissingWatchOvertaken(t *testing.T) {
	dir := t.TempDir()
	ctx := context.Background()
	w := newMissingWatch(t)
	if !w.Claim(1) || !w.Claim(2) || w.Claim(2) {
		t.Fatal("ids need not grow")
	}
	begin, watching, err := w.Arm(ctx, 2, []string{dir + "/a"}, "")
	if !watching || err != nil {
		t.Fatal("not watching")
	}
	begin()
	if _, watching, _ := w.Arm(ctx, 1, []string{dir + "/b"}, ""); watching {
		t.Error("a call that was replaced is watching")
	}
	put(t, dir+"/a", "")
	w.id = 2
	w.wantTold("the last call")
}

// TestMissingWatchWaitsForBegin checks that no notification comes before the answer.
func TestMissingWatchWaitsForBegin(t *testing.T) {
	dir := t.TempDir()
	w := newMissingWatch(t)
	begin, watching := w.Watch(context.Background(), 1, []string{dir + "/a"}, "")
	if !watching {
		t.Fatal("not watching")
	}
	put(t, dir+"/a", "")
	select {
	case <-w.told:
		t.Fatal("notified before begin")
	case <-time.After(50 * time.Millisecond):
	}
	w.id = 1
	begin()
	begin()
	w.wantTold("after begin")
}

// TestMissingWatchAdmitted counts what watches hold of the system: nothing once they have notified,
// have been replaced or closed, or were refused.
func TestMissingWatchAdmitted(t *testing.T) {
	dir := t.TempDir()
	w := newMissingWatch(t)
	var held atomic.Int64
	gone := make(chan struct{}, 10)
	w.Admit = func(uint64) (func(), error) {
		held.Add(1)
		return func() {
			held.Add(-1)
			gone <- struct{}{}
		}, nil
	}
	holds := func(what string, want int64) {
		t.Helper()
		if got := held.Load(); got != want {
			t.Errorf("%s: %d watches are held, want %d", what, got, want)
		}
	}
	if !w.next([]string{dir + "/a"}, "") || !w.next([]string{dir + "/b"}, "") {
		t.Fatal("not watching")
	}
	holds("a watch and its successor", 1)
	put(t, dir+"/b", "")
	w.wantTold("the second watch")
	holds("after it has notified", 0)
	if w.next([]string{dir}, "") {
		t.Error("it watches what exists")
	}
	holds("after one that cannot be", 0)
	if w.next(nil, "") {
		t.Error("it watches nothing")
	}
	holds("after an empty one", 0)
	if !w.next([]string{dir + "/c"}, "") {
		t.Fatal("not watching")
	}
	w.Close()
	holds("after Close", 0)
	if len(gone) != 5 {
		t.Errorf("%d watches have ended, want 5", len(gone))
	}
	full := errors.New("the limit is 0")
	w = newMissingWatch(t)
	w.Admit = func(uint64) (func(), error) { return nil, full }
	w.Claim(1)
	if _, watching, err := w.Arm(context.Background(), 1, []string{dir + "/d"}, ""); watching || err != full {
		t.Errorf("refused: %v, %v", watching, err)
	}
}

func TestMissingWatchManyTimes(t *testing.T) {
	dir := t.TempDir()
	w := newMissingWatch(t)
	before := testkit.Descriptors(t)
	for i := range 150 { // more inotify instances than a user may have
		path := fmt.Sprint(dir, "/", i)
		if !w.next([]string{path}, "") {
			t.Fatalf("watch %d was refused", i)
		}
		if i%10 == 0 {
			put(t, path, "")
			w.wantTold(path)
		}
	}
	w.Close()
	if after := testkit.Descriptors(t); after != before {
		t.Errorf("%d descriptors open, %d before", after, before)
	}
}
