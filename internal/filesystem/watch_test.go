package filesystem_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"execserver/internal/filesystem"
	"execserver/internal/testkit"
	"execserver/internal/testkit/transporttest"
)

// watcher collects events until all expected ones have come.
type watcher struct {
	*filesystem.Watcher
	t      *testing.T
	root   string
	cursor uint64
}

func newWatcher(t *testing.T, root string, options filesystem.WatchOptions) *watcher {
	t.Helper()
	if options.Debounce == 0 {
		options.Debounce = 10 * time.Millisecond
	}
	w, err := filesystem.NewWatcher(context.Background(), root, options)
	ok(t, "watch", err)
	t.Cleanup(w.Close)
	return &watcher{Watcher: w, t: t, root: root}
}

func (w *watcher) describe(e filesystem.Event) string {
	if e.Kind == filesystem.Overflow {
		var names []string
		for _, path := range e.Unwatched {
			name, _ := filepath.Rel(w.root, path)
			names = append(names, filepath.ToSlash(name))
		}
		slices.Sort(names)
		return "overflow " + strings.Join(names, ",")
	}
	name, _ := filepath.Rel(w.root, e.Path)
	return e.Kind.String() + " " + filepath.ToSlash(name)
}

// want waits until every wanted event has come, and checks the numbering.
func (w *watcher) want(wanted ...string) []string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	var all []string
	for {
		missing := slices.DeleteFunc(slices.Clone(wanted), func(s string) bool { return slices.Contains(all, s) })
		if len(missing) == 0 {
			return all
		}
		events, err := w.Events(ctx, w.cursor)
		if err != nil {
			w.t.Fatalf("%v; missing %q, got %q", err, missing, all)
		}
		for _, e := range events {
			if e.Cursor != w.cursor+1 {
				w.t.Fatalf("cursor %d after %d", e.Cursor, w.cursor)
			}
			w.cursor = e.Cursor
			all = append(all, w.describe(e))
		}
	}
}

func TestWatcher(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "old", "f"), "")
	w := newWatcher(t, dir, filesystem.WatchOptions{})

	put(t, filepath.Join(dir, "old", "f"), "changed")
	w.want("modified old/f")
	put(t, filepath.Join(dir, "old", "g"), "")
	w.want("created old/g")
	ok(t, "remove", os.Remove(filepath.Join(dir, "old", "f")))
	w.want("removed old/f")

	// The watcher also watches new directories, with everything in them.
	put(t, filepath.Join(dir, "a", "b", "c", "f"), "")
	// It may find the file, and be notified of it later. What is notified about "settled"
	// comes after that, and a change of the file is then no part of its creation.
	put(t, filepath.Join(dir, "settled"), "")
	w.want("created a", "created a/b", "created a/b/c", "created a/b/c/f", "created settled")
	put(t, filepath.Join(dir, "a", "b", "c", "f"), "changed")
	w.want("modified a/b/c/f")
	ok(t, "remove", os.RemoveAll(filepath.Join(dir, "a")))
	w.want("removed a")
	put(t, filepath.Join(dir, "a", "b", "new"), "")
	w.want("created a/b/new")
}

func TestWatcherDebounces(t *testing.T) {
	dir := t.TempDir()
	w := newWatcher(t, dir, filesystem.WatchOptions{Debounce: time.Hour})
	put(t, filepath.Join(dir, "passing"), "")
	ok(t, "remove", os.Remove(filepath.Join(dir, "passing")))
	for i := range 100 {
		put(t, filepath.Join(dir, "f"), fmt.Sprint(i))
	}
	filesystem.FlushWatcher(t, w.Watcher, filepath.Join(dir, "f"))
	got := w.want("created f")
	put(t, filepath.Join(dir, "last"), "")
	filesystem.FlushWatcher(t, w.Watcher, filepath.Join(dir, "last"))
	got = append(got, w.want("created last")...)
	if slices.Contains(got, "created passing") || len(got) > 5 {
		t.Errorf("got %q", got)
	}
}

func TestWatcherCursors(t *testing.T) {
	dir := t.TempDir()
	w := newWatcher(t, dir, filesystem.WatchOptions{History: 5})
	for i := range 8 {
		mkdir(t, filepath.Join(dir, fmt.Sprint(i)))
		w.want(fmt.Sprint("created ", i))
	}
	// A reader continues after a pause.
	ctx := context.Background()
	for after := range uint64(12) {
		events, err := w.Events(ctxDone(ctx), after)
		if after == w.Cursor() {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("after %d: %v, %v", after, events, err)
			}
			continue
		}
		ok(t, "events", err)
		switch first := events[0]; {
		case after < 3 || after > 8:
			if first.Kind != filesystem.Overflow || len(first.Unwatched) != 1 || first.Unwatched[0] != dir {
				t.Errorf("after %d: %+v", after, first)
			}
		case first.Cursor != after+1 || first.Kind != filesystem.Created:
			t.Errorf("after %d: %+v", after, first)
		}
		for i := 1; i < len(events); i++ {
			if events[i].Cursor != events[i-1].Cursor+1 {
				t.Errorf("after %d: cursors jump: %+v", after, events)
			}
		}
		if last := events[len(events)-1]; last.Cursor != w.Cursor() {
			t.Errorf("after %d: last is %+v", after, last)
		}
	}
}

func ctxDone(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}

func TestWatcherReportsUnwatchedDirectories(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		mkdir(t, filepath.Join(dir, name))
	}
	w := newWatcher(t, dir, filesystem.WatchOptions{MaxDirectories: 3})
	got := w.want()
	events, err := w.Events(context.Background(), 0)
	if err != nil || events[0].Kind != filesystem.Overflow || len(events[0].Unwatched) != 1 {
		t.Fatalf("%q, %+v, %v", got, events, err)
	}
	mkdir(t, filepath.Join(dir, "d"))
	w.want("created d", "overflow d")
}

func TestWatcherTooManyChanges(t *testing.T) {
	dir := t.TempDir()
	w := newWatcher(t, dir, filesystem.WatchOptions{History: 10, Debounce: 100 * time.Millisecond})
	for i := range 30 {
		put(t, filepath.Join(dir, fmt.Sprint(i)), "")
	}
	// The events may come in several portions; in the end the first are gone.
	testkit.WaitFor(t, testkit.Patience, func() error {
		events, err := w.Events(context.Background(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if events[0].Kind != filesystem.Overflow {
			return fmt.Errorf("no overflow: %+v", events)
		}
		return nil
	})
}

// TestWatcherBoundsPaths makes fewer changes than are kept, with long paths.
func TestWatcherBoundsPaths(t *testing.T) {
	root := t.TempDir()
	dir := root
	for range 3 {
		dir = mkdir(t, filepath.Join(dir, strings.Repeat("d", 200)))
	}
	w := newWatcher(t, root, filesystem.WatchOptions{})
	name := func(i int) string { return filepath.Join(dir, fmt.Sprint(strings.Repeat("f", 200), i)) }
	for i := range 1500 {
		put(t, name(i), "")
	}
	var events []filesystem.Event
	testkit.WaitFor(t, testkit.Patience, func() (err error) {
		if events, err = w.Events(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
		if events[0].Kind != filesystem.Overflow {
			return fmt.Errorf("no overflow: %d events", len(events))
		}
		return nil
	})
	size := 0
	for _, e := range events {
		size += len(e.Path)
	}
	if size > 1<<20 {
		t.Errorf("%d bytes of paths are kept", size)
	}
	// A reader that has read on gets what comes next.
	after := events[len(events)-1].Cursor
	mkdir(t, filepath.Join(root, "next"))
	for !slices.ContainsFunc(events, func(e filesystem.Event) bool { return e.Path == filepath.Join(root, "next") }) {
		var err error
		if events, err = w.Events(context.Background(), after); err != nil {
			t.Fatal(err)
		}
		after = events[len(events)-1].Cursor
	}
}

func TestWatcherClose(t *testing.T) {
	w := newWatcher(t, t.TempDir(), filesystem.WatchOptions{})
	done := make(chan error)
	go func() {
		_, err := w.Events(context.Background(), 0)
		done <- err
	}()
	testkit.WaitFor(t, testkit.Patience, func() error { return transporttest.Waits("TestWatcherClose.") })
	w.Close()
	w.Close()
	if err := <-done; !errors.Is(err, filesystem.ErrWatcherClosed) {
		t.Errorf("waiting reader: %v", err)
	}
	if _, err := w.Events(context.Background(), 0); !errors.Is(err, filesystem.ErrWatcherClosed) {
		t.Errorf("late reader: %v", err)
	}
}

func TestWatcherNeedsADirectory(t *testing.T) {
	dir := t.TempDir()
	_, err := filesystem.NewWatcher(context.Background(), put(t, filepath.Join(dir, "f"), ""), filesystem.WatchOptions{})
	if kind, _ := filesystem.Classify(err); err == nil || kind != filesystem.Other {
		t.Errorf("file: %v", err)
	}
	_, err = filesystem.NewWatcher(context.Background(), filepath.Join(dir, "none"), filesystem.WatchOptions{})
	if kind, _ := filesystem.Classify(err); kind != filesystem.NotFound {
		t.Errorf("missing: %v", err)
	}
}
