package filesystem_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"execserver/internal/filesystem"
)

func TestGetMetadata(t *testing.T) {
	ctx := context.Background()
	before := time.Now().Add(-2 * time.Second)
	dir := t.TempDir()
	file := put(t, filepath.Join(dir, "f"), "hello")
	link := symlink(t, "f", filepath.Join(dir, "link"))
	symlink(t, "none", filepath.Join(dir, "dangling"))

	m, err := filesystem.GetMetadata(ctx, file, filesystem.Follow)
	ok(t, "file", err)
	if m.IsDirectory || !m.IsFile || m.IsSymlink || m.Size != 5 || m.Modified.Before(before) {
		t.Errorf("file: %+v", m)
	}
	if runtime.GOOS == "linux" && m.Created.Before(before) {
		t.Errorf("file: created %v", m.Created)
	}
	m, err = filesystem.GetMetadata(ctx, link, filesystem.Follow)
	ok(t, "link", err)
	if !m.IsFile || !m.IsSymlink || m.Size != 5 {
		t.Errorf("link: %+v", m)
	}
	m, err = filesystem.GetMetadata(ctx, dir, filesystem.Follow)
	ok(t, "directory", err)
	if !m.IsDirectory || m.IsFile || m.IsSymlink {
		t.Errorf("directory: %+v", m)
	}
	_, err = filesystem.GetMetadata(ctx, filepath.Join(dir, "dangling"), filesystem.Follow)
	if kind, _ := filesystem.Classify(err); kind != filesystem.NotFound {
		t.Errorf("dangling link: %v", err)
	}
	_, err = filesystem.GetMetadata(ctx, link, filesystem.NoFollow)
	wantError(t, "link", err, filesystem.InvalidInput, "path contains a symbolic link")
}

func TestMilliseconds(t *testing.T) {
	for _, tt := range []struct {
		in   time.Time
		want int64
	}{
		{time.Time{}, 0},
		{time.Unix(-5, 0), 0},
		{time.Unix(1, 234_567_000), 1234},
	} {
		if got := filesystem.Milliseconds(tt.in); got != tt.want {
			t.Errorf("%v: %d, want %d", tt.in, got, tt.want)
		}
	}
}

func TestReadFile(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	for _, size := range []int{0, 1, 511, 512, 513, 1 << 20, 3<<20 + 7} {
		want := strings.Repeat("x", size)
		got, err := filesystem.ReadFile(ctx, put(t, filepath.Join(dir, "f"), want), filesystem.ReadOptions{})
		if err != nil || string(got) != want {
			t.Errorf("%d bytes: got %d, %v", size, len(got), err)
		}
	}
	_, err := filesystem.ReadFile(ctx, dir, filesystem.ReadOptions{})
	wantError(t, "directory", err, filesystem.InvalidInput, "path `"+dir+"` is not a file")
	_, err = filesystem.ReadFile(ctx, dir, filesystem.ReadOptions{Links: filesystem.NoFollow})
	wantError(t, "directory", err, filesystem.InvalidInput, "path is not a regular file")
}

func TestReadLimit(t *testing.T) {
	ctx := context.Background()
	file := put(t, filepath.Join(t.TempDir(), "f"), "0123456789")
	for _, limit := range []int64{10, 11, -1, 0} {
		if got, err := filesystem.ReadFile(ctx, file, filesystem.ReadOptions{Limit: limit}); err != nil || len(got) != 10 {
			t.Errorf("limit %d: %q, %v", limit, got, err)
		}
	}
	_, err := filesystem.ReadFile(ctx, file, filesystem.ReadOptions{Limit: 9})
	wantError(t, "limit 9", err, filesystem.InvalidInput, "file is too large to read: limit is 9 bytes, size is 10 bytes")
	tooLarge, is := errors.AsType[*filesystem.TooLargeError](err)
	if !is || tooLarge.Limit != 9 || tooLarge.Size != 10 {
		t.Errorf("error = %#v", err)
	}
}

// TestOpenForEncodingWhileReading encodes a file while it reads, as a server does so that
// it never holds the file twice.
func TestOpenForEncodingWhileReading(t *testing.T) {
	want := strings.Repeat("0123456789", 100_000)
	f, err := filesystem.Open(context.Background(), put(t, filepath.Join(t.TempDir(), "f"), want), filesystem.ReadOptions{})
	ok(t, "open", err)
	defer f.Close()
	if f.Size() != int64(len(want)) {
		t.Errorf("size %d", f.Size())
	}
	var encoded bytes.Buffer
	enc := base64.NewEncoder(base64.StdEncoding, &encoded)
	_, err = io.Copy(enc, f)
	ok(t, "copy", err)
	enc.Close()
	if got, err := base64.StdEncoding.DecodeString(encoded.String()); err != nil || string(got) != want {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
}

func TestReadDirectory(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	put(t, filepath.Join(dir, "f"), "")
	put(t, filepath.Join(dir, ".hidden"), "")
	mkdir(t, filepath.Join(dir, "d"))
	symlink(t, "f", filepath.Join(dir, "to-file"))
	symlink(t, "d", filepath.Join(dir, "to-directory"))
	symlink(t, "none", filepath.Join(dir, "dangling"))
	symlink(t, "loop", filepath.Join(dir, "loop"))
	symlink(t, dir, filepath.Join(dir, "d", "up"))
	want := []filesystem.DirEntry{
		{Name: ".hidden", IsFile: true},
		{Name: "d", IsDirectory: true},
		{Name: "dangling", IsSymlink: true},
		{Name: "f", IsFile: true},
		{Name: "loop", IsSymlink: true},
		{Name: "to-directory", IsDirectory: true, IsSymlink: true},
		{Name: "to-file", IsFile: true, IsSymlink: true},
	}
	for _, path := range []string{dir, filepath.Join(dir, "d", "up")} {
		got, err := readDirectory(ctx, path)
		ok(t, "ReadDirectory", err)
		slices.SortFunc(got, func(a, b filesystem.DirEntry) int { return strings.Compare(a.Name, b.Name) })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", path, diff)
		}
	}
	empty, err := readDirectory(ctx, mkdir(t, filepath.Join(dir, "empty")))
	if err != nil || len(empty) != 0 {
		t.Errorf("empty directory: %v, %v", empty, err)
	}
}

// TestReadDirectoryStops checks that ReadDirectory stops when visit returns false.
func TestReadDirectoryStops(t *testing.T) {
	dir := t.TempDir()
	for i := range 10 {
		put(t, filepath.Join(dir, strconv.Itoa(i)), "")
	}
	seen := 0
	err := filesystem.ReadDirectory(context.Background(), dir, false, func(filesystem.DirEntry) bool {
		seen++
		return seen < 3
	})
	if err != nil || seen != 3 {
		t.Errorf("%d entries, %v", seen, err)
	}
}

func TestCanonicalize(t *testing.T) {
	ctx := context.Background()
	dir, err := filesystem.Canonicalize(ctx, t.TempDir())
	ok(t, "temporary directory", err)
	put(t, filepath.Join(dir, "d", "f"), "")
	symlink(t, "d", filepath.Join(dir, "link"))
	symlink(t, "none", filepath.Join(dir, "dangling"))
	symlink(t, "loop", filepath.Join(dir, "loop"))
	got, err := filesystem.Canonicalize(ctx, filepath.Join(dir, "link", "f"))
	if want := filepath.Join(dir, "d", "f"); err != nil || got != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	for _, name := range []string{"none", "dangling", "none/f"} {
		_, err := filesystem.Canonicalize(ctx, filepath.Join(dir, name))
		if kind, _ := filesystem.Classify(err); kind != filesystem.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"loop", "d/f/g"} {
		_, err := filesystem.Canonicalize(ctx, filepath.Join(dir, name))
		if kind, _ := filesystem.Classify(err); err == nil || kind != filesystem.Other {
			t.Errorf("%s: %v", name, err)
		}
	}
}
