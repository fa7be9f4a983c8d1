package filesystem_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"execserver/internal/filesystem"
	"execserver/internal/testkit"
)

func TestMain(m *testing.M) {
	isolateMounts()
	testkit.VerifyMain(m)
}

// within fails the test if f does not return: no file operation may wait for another
// program.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(testkit.Patience):
		t.Fatalf("%s hangs\n%s", what, testkit.Stacks())
	}
}

func put(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func symlink(t *testing.T, text, path string) string {
	t.Helper()
	if err := os.Symlink(text, path); err != nil {
		t.Skip("no symbolic links here: ", err)
	}
	return path
}

func mkdir(t *testing.T, path string) string {
	t.Helper()
	if err := os.MkdirAll(path, 0o777); err != nil {
		t.Fatal(err)
	}
	return path
}

// wantError checks the error that a peer would receive.
func wantError(t *testing.T, what string, err error, kind filesystem.Kind, text string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want %q", what, text)
		return
	}
	if gotKind, got := filesystem.Classify(err); gotKind != kind || got != text {
		t.Errorf("%s: %s %q, want %s %q", what, kindName(gotKind), got, kindName(kind), text)
	}
}

func kindName(k filesystem.Kind) string { return []string{"other", "not found", "invalid"}[k] }

func ok(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// The most frequent errors, as every Unix words them for a peer.
const (
	notFound = "no such file or directory (os error 2)"
	notDir   = "not a directory (os error 20)"
	isDir    = "is a directory (os error 21)"
	exists   = "file exists (os error 17)"
)

func TestEndedContextStopsEverything(t *testing.T) {
	dir := t.TempDir()
	file := put(t, filepath.Join(dir, "f"), "x")
	cause := errors.New("gone")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	var h filesystem.Handles
	defer h.Close()
	for name, call := range map[string]func() error{
		"GetMetadata":     func() error { _, err := filesystem.GetMetadata(ctx, file, filesystem.Follow); return err },
		"ReadFile":        func() error { _, err := filesystem.ReadFile(ctx, file, filesystem.ReadOptions{}); return err },
		"ReadDirectory":   func() error { _, err := readDirectory(ctx, dir); return err },
		"Canonicalize":    func() error { _, err := filesystem.Canonicalize(ctx, file); return err },
		"WriteFile":       func() error { return filesystem.WriteFile(ctx, file, []byte("y"), filesystem.WriteOptions{}) },
		"CreateDirectory": func() error { return filesystem.CreateDirectory(ctx, dir+"/n", filesystem.CreateDirectoryOptions{}) },
		"Remove":          func() error { return filesystem.Remove(ctx, file, filesystem.RemoveOptions{Force: true}) },
		"Copy":            func() error { return filesystem.Copy(ctx, file, dir+"/n", filesystem.CopyOptions{}) },
		"Rename":          func() error { return filesystem.Rename(ctx, file, dir+"/n", filesystem.RenameOptions{}) },
		"Walk":            func() error { _, err := filesystem.Walk(ctx, dir, walkAll); return err },
		"Open":            func() error { return h.Open(ctx, "h", file, filesystem.HandleRead) },
		"NewWatcher":      func() error { _, err := filesystem.NewWatcher(ctx, dir, filesystem.WatchOptions{}); return err },
	} {
		if err := call(); !errors.Is(err, cause) {
			t.Errorf("%s: %v, want the context's cause", name, err)
		}
	}
	if got := content(t, file); got != "x" {
		t.Errorf("the file holds %q", got)
	}
}

func TestPathsMustBeAbsoluteAndWithoutNUL(t *testing.T) {
	ctx := context.Background()
	for path, text := range map[string]string{
		"":       "path is not absolute: ",
		"a":      "path is not absolute: a",
		"../a":   "path is not absolute: ../a",
		"/a\x00": "file name contained an unexpected NUL byte",
	} {
		_, err := filesystem.GetMetadata(ctx, path, filesystem.Follow)
		wantError(t, "GetMetadata", err, filesystem.InvalidInput, text)
		_, err = filesystem.ReadFile(ctx, path, filesystem.ReadOptions{Links: filesystem.NoFollow})
		wantError(t, "ReadFile", err, filesystem.InvalidInput, text)
		_, err = readDirectory(ctx, path)
		wantError(t, "ReadDirectory", err, filesystem.InvalidInput, text)
		_, err = filesystem.Canonicalize(ctx, path)
		wantError(t, "Canonicalize", err, filesystem.InvalidInput, text)
		_, err = filesystem.Walk(ctx, path, walkAll)
		wantError(t, "Walk", err, filesystem.InvalidInput, text)
		_, err = filesystem.NewWatcher(ctx, path, filesystem.WatchOptions{})
		wantError(t, "NewWatcher", err, filesystem.InvalidInput, text)
		wantError(t, "WriteFile", filesystem.WriteFile(ctx, path, nil, filesystem.WriteOptions{}), filesystem.InvalidInput, text)
		wantError(t, "Remove", filesystem.Remove(ctx, path, filesystem.RemoveOptions{Recursive: true, Force: true}), filesystem.InvalidInput, text)
		wantError(t, "CreateDirectory", filesystem.CreateDirectory(ctx, path, filesystem.CreateDirectoryOptions{}), filesystem.InvalidInput, text)
		wantError(t, "Copy", filesystem.Copy(ctx, path, "/x", filesystem.CopyOptions{}), filesystem.InvalidInput, text)
		wantError(t, "Rename", filesystem.Rename(ctx, "/x", path, filesystem.RenameOptions{}), filesystem.InvalidInput, text)
	}
}

func TestJoinAndParent(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("POSIX paths")
	}
	for _, tt := range []struct{ base, path, want string }{
		{"/a", "b", "/a/b"},
		{"/a/", "./b/../c/", "/a/c"},
		{"/a", "../../../b", "/b"},
		{"/a", "/b", "/b"},
		{"/a", "", "/a"},
		{"/", "b", "/b"},
	} {
		if got := filesystem.Join(tt.base, tt.path); got != tt.want {
			t.Errorf("Join(%q, %q) = %q, want %q", tt.base, tt.path, got, tt.want)
		}
	}
	for path, want := range map[string]string{"/a/b": "/a", "/a": "/", "/a/b/": "/a", "/": "", "//": ""} {
		parent, has := filesystem.Parent(path)
		if has != (want != "") || has && parent != want {
			t.Errorf("Parent(%q) = %q, %v; want %q", path, parent, has, want)
		}
	}
}

func readDirectory(ctx context.Context, path string) (entries []filesystem.DirEntry, err error) {
	err = filesystem.ReadDirectory(ctx, path, false, func(e filesystem.DirEntry) bool {
		entries = append(entries, e)
		return true
	})
	return entries, err
}
