package filesystem_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"execserver/internal/filesystem"
	"execserver/internal/testkit"
)

// TestOpenHandleTable compares with the results of the released server for each kind of
// file.
func TestOpenHandleTable(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	put(t, dir+"/f", "x")
	mkdir(t, dir+"/d")
	mkfifo(t, dir+"/fifo")
	socket(t, dir+"/sock")
	symlink(t, "f", dir+"/lf")
	symlink(t, "made", dir+"/dang")
	const nxio = "no such device or address (os error 6)"
	notFile := func(path string) string { return "path `" + path + "` is not a file" }
	for _, tt := range []struct{ path, read, replace string }{
		{dir + "/f", "", ""},
		{dir + "/lf", "", ""},
		{dir + "/d", notFile(dir + "/d"), isDir},
		{dir + "/fifo", notFile(dir + "/fifo"), nxio},
		{dir + "/sock", nxio, nxio},
		{dir + "/none/x", notFound, notFound},
		{dir + "/f/x", notDir, notDir},
		{dir + "/dang", notFound, ""},
		{"/dev/null", notFile("/dev/null"), notFile("/dev/null")},
	} {
		for mode, text := range []string{tt.read, tt.replace} {
			var h filesystem.Handles
			err := h.Open(ctx, "h", tt.path, filesystem.HandleMode(mode))
			h.Close()
			what := fmt.Sprint(tt.path, " mode ", mode)
			switch {
			case text == "":
				if err != nil {
					t.Errorf("%s: %v", what, err)
				}
			case text == notFound:
				wantError(t, what, err, filesystem.NotFound, text)
			case strings.HasPrefix(text, "path "):
				wantError(t, what, err, filesystem.InvalidInput, text)
			default:
				wantError(t, what, err, filesystem.Other, text)
			}
		}
	}
	if _, err := os.Stat(dir + "/made"); err != nil {
		t.Error(err)
	}
}

func TestHandlesHoldTheirFile(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	before := testkit.Descriptors(t)
	var h filesystem.Handles
	ok(t, "open", h.Open(ctx, "h", put(t, dir+"/f", "still here"), filesystem.HandleRead))
	ok(t, "remove", os.Remove(dir+"/f"))
	if got, _, err := h.ReadBlock(ctx, "h", 0, 100, nil); err != nil || string(got) != "still here" {
		t.Errorf("%q, %v", got, err)
	}
	h.Close()
	if after := testkit.Descriptors(t); after != before {
		t.Errorf("%d descriptors open, %d before", after, before)
	}
}

func TestSystemWriteBlockErrorsKeepTheHandle(t *testing.T) {
	ctx := context.Background()
	dir := mountTmpfs(t, "size=64k")
	var h filesystem.Handles
	defer h.Close()
	ok(t, "open", h.Open(ctx, "h", dir+"/f", filesystem.HandleReplace))
	err := h.WriteBlock(ctx, "h", 0, make([]byte, 200_000))
	wantError(t, "full", err, filesystem.Other, "no space left on device (os error 28)")
	ok(t, "write", h.WriteBlock(ctx, "h", 0, []byte("x")))
	ok(t, "open", h.Open(ctx, "e", t.TempDir()+"/f", filesystem.HandleReplace))
	err = h.WriteBlock(ctx, "e", 1<<63-4, []byte("hi"))
	wantError(t, "beyond what the file system can", err, filesystem.Other, "file too large (os error 27)")
	ok(t, "write", h.WriteBlock(ctx, "e", 0, []byte("x")))
}
