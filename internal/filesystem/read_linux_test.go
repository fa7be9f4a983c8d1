package filesystem_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"execserver/internal/filesystem"
	"execserver/internal/testkit"
)

// TestNoFollow compares with the results of the released server for each kind of file,
// without following links.
func TestNoFollow(t *testing.T) {
	ctx := context.Background()
	const (
		link    = "path contains a symbolic link"
		regular = "path is not a regular file"
		loop    = "too many levels of symbolic links (os error 40)"
		nxio    = "no such device or address (os error 6)"
	)
	dir := t.TempDir()
	putEachKind(t, dir, "hello")
	type want struct {
		kind filesystem.Kind
		text string // "" for success
	}
	invalid, other, missing := filesystem.InvalidInput, filesystem.Other, filesystem.NotFound
	for _, tt := range []struct {
		path           string
		metadata, read want
		write          want
	}{
		{"f", want{}, want{}, want{}},
		{"d", want{}, want{invalid, regular}, want{other, isDir}},
		{"lf", want{invalid, link}, want{other, loop}, want{other, loop}},
		{"ld", want{invalid, link}, want{other, loop}, want{other, loop}},
		{"ld/sub", want{other, notDir}, want{other, notDir}, want{other, notDir}},
		{"dang", want{invalid, link}, want{other, loop}, want{other, loop}},
		{"loop", want{invalid, link}, want{other, loop}, want{other, loop}},
		{"fifo", want{}, want{invalid, regular}, want{invalid, regular}},
		{"sock", want{}, want{other, nxio}, want{other, nxio}},
		{"f/x", want{other, notDir}, want{other, notDir}, want{other, notDir}},
		{"nope", want{missing, notFound}, want{missing, notFound}, want{}},
		{"none/x", want{missing, notFound}, want{missing, notFound}, want{missing, notFound}},
		{"loop/x", want{other, notDir}, want{other, notDir}, want{other, notDir}},
		{"dang/x", want{other, notDir}, want{other, notDir}, want{other, notDir}},
	} {
		path := filepath.Join(dir, tt.path)
		check := func(what string, err error, w want) {
			if what += " " + tt.path; w.text != "" {
				wantError(t, what, err, w.kind, w.text)
			} else if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err := filesystem.GetMetadata(ctx, path, filesystem.NoFollow)
		check("metadata", err, tt.metadata)
		_, err = filesystem.ReadFile(ctx, path, filesystem.ReadOptions{Links: filesystem.NoFollow})
		check("read", err, tt.read)
		err = filesystem.WriteFile(ctx, path, []byte("new"), filesystem.WriteOptions{Links: filesystem.NoFollow})
		check("write", err, tt.write)
	}
	if m, err := filesystem.GetMetadata(ctx, "/", filesystem.NoFollow); err != nil || !m.IsDirectory {
		t.Errorf("root: %+v, %v", m, err)
	}
}

func TestPseudoFilesAreReadToTheirEnd(t *testing.T) {
	ctx := context.Background()
	want, err := os.ReadFile("/proc/self/cmdline")
	ok(t, "read", err)
	got, err := filesystem.ReadFile(ctx, "/proc/self/cmdline", filesystem.ReadOptions{})
	if err != nil || string(got) != string(want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	// The limit also holds for files that do not report their size.
	_, err = filesystem.ReadFile(ctx, "/proc/self/cmdline", filesystem.ReadOptions{Limit: 3})
	wantError(t, "limit", err, filesystem.InvalidInput, "file is too large to read: limit is 3 bytes")
}

func TestNamesThatAreNotUTF8(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	name := "bad\xff\xfe"
	put(t, dir+"/"+name, "x")
	entries, err := readDirectory(ctx, dir)
	if err != nil || len(entries) != 1 || entries[0].Name != name {
		t.Fatalf("%+v, %v", entries, err)
	}
	if got, err := filesystem.ReadFile(ctx, dir+"/"+entries[0].Name, filesystem.ReadOptions{}); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := filesystem.Canonicalize(ctx, dir+"/"+name); err != nil || filepath.Base(got) != name {
		t.Errorf("%q, %v", got, err)
	}
}

func TestUnreadableEntriesStayInTheListing(t *testing.T) {
	dir := sharedDir(t)
	mkdir(t, dir+"/open")
	put(t, dir+"/closed/f", "")
	symlink(t, "../closed/f", dir+"/open/into-closed")
	ok(t, "chmod", os.Chmod(dir+"/closed", 0o700))
	asNobody(t, func() {
		got, err := readDirectory(context.Background(), dir+"/open")
		if err != nil || len(got) != 1 || got[0] != (filesystem.DirEntry{Name: "into-closed", IsSymlink: true}) {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestSystemWalkUnreadable(t *testing.T) {
	testkit.System(t, testkit.Root)
	dir := sharedDir(t)
	put(t, dir+"/open/f\xff", "")
	put(t, dir+"/closed/below/f", "")
	ok(t, "chmod", os.Chmod(dir+"/closed", 0o700))
	var got filesystem.WalkResult
	var err error
	asNobody(t, func() { got, err = filesystem.Walk(context.Background(), dir, walkAll) })
	ok(t, "walk", err)
	if len(got.Errors) != 1 || got.Errors[0].Path != dir+"/closed" {
		t.Fatalf("errors: %+v", got.Errors)
	}
	wantError(t, "closed", got.Errors[0].Err, filesystem.InvalidInput, "permission denied (os error 13)")
	want := []filesystem.WalkEntry{{Path: dir + "/closed", IsDirectory: true}, {Path: dir + "/open", IsDirectory: true}, {Path: dir + "/open/f\xff"}}
	if diff := cmp.Diff(want, got.Entries); diff != "" {
		t.Error(diff)
	}
	asNobody(t, func() { got, err = filesystem.Walk(context.Background(), dir+"/closed", walkAll) })
	if err != nil || len(got.Entries) != 0 || len(got.Errors) != 1 {
		t.Errorf("unreadable root: %+v, %v", got, err)
	}
	asNobody(t, func() { got, err = filesystem.Walk(context.Background(), dir+"/closed/below", walkAll) })
	wantError(t, "below", err, filesystem.InvalidInput, "permission denied (os error 13)")
}
