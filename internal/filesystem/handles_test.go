package filesystem_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"execserver/internal/filesystem"
)

func TestReadHandle(t *testing.T) {
	ctx := context.Background()
	var h filesystem.Handles
	defer h.Close()
	file := put(t, filepath.Join(t.TempDir(), "f"), "hello world")
	ok(t, "open", h.Open(ctx, "a", file, filesystem.HandleRead))
	for _, tt := range []struct {
		offset, length uint64
		want           string
		eof            bool
	}{
		{0, 5, "hello", false},
		{6, 5, "world", false}, // ends exactly at the end
		{11, 5, "", true},
		{6, 6, "world", true},
		{0, 1, "h", false},
		{1 << 40, 1, "", true},
		{0, filesystem.MaxBlock, "hello world", true},
	} {
		got, eof, err := h.ReadBlock(ctx, "a", tt.offset, tt.length, nil)
		if err != nil || string(got) != tt.want || eof != tt.eof {
			t.Errorf("%d+%d: %q, %v, %v; want %q, %v", tt.offset, tt.length, got, eof, err, tt.want, tt.eof)
		}
	}
	buf := make([]byte, 100)
	if got, _, err := h.ReadBlock(ctx, "a", 0, 5, buf); err != nil || &got[0] != &buf[0] {
		t.Errorf("the buffer was not used: %v", err)
	}
	const badLength = "file read block length must be between 1 and 1048576"
	for _, length := range []uint64{0, filesystem.MaxBlock + 1, math.MaxUint64} {
		_, _, err := h.ReadBlock(ctx, "a", 0, length, nil)
		wantError(t, "length", err, filesystem.InvalidInput, badLength)
	}
	if _, _, err := h.ReadBlock(ctx, "a", 0, 1, nil); err != nil {
		t.Errorf("a refused length closed the handle: %v", err)
	}
	_, _, err := h.ReadBlock(ctx, "none", 0, 0, nil)
	wantError(t, "length before id", err, filesystem.InvalidInput, badLength)
	_, _, err = h.ReadBlock(ctx, "none", 0, 1, nil)
	wantError(t, "unknown", err, filesystem.NotFound, "unknown file handle `none`")

	for _, offset := range []uint64{math.MaxInt64, math.MaxInt64 + 1, math.MaxUint64} {
		ok(t, "open", h.Open(ctx, "b", file, filesystem.HandleRead))
		_, _, err := h.ReadBlock(ctx, "b", offset, 3, nil)
		if kind, _ := filesystem.Classify(err); kind != filesystem.InvalidInput {
			t.Errorf("offset %d: %v", offset, err)
		}
		_, _, err = h.ReadBlock(ctx, "b", 0, 1, nil)
		wantError(t, "after a failure", err, filesystem.NotFound, "unknown file handle `b`")
	}
}

func TestHandleIDs(t *testing.T) {
	ctx := context.Background()
	var h filesystem.Handles
	defer h.Close()
	file := put(t, filepath.Join(t.TempDir(), "f"), "x")
	const long = "file handle ID must not exceed 32 bytes"
	for _, id := range []string{strings.Repeat("x", 33), strings.Repeat("é", 16) + "x"} {
		_, _, err := h.ReadBlock(ctx, id, 0, 0, nil)
		wantError(t, "read", err, filesystem.InvalidInput, long)
		wantError(t, "open", h.Open(ctx, id, file+"none", filesystem.HandleRead), filesystem.InvalidInput, long)
		wantError(t, "write", h.WriteBlock(ctx, id, 0, nil), filesystem.InvalidInput, long)
		wantError(t, "close", h.CloseHandle(id), filesystem.InvalidInput, long)
	}
	for _, id := range []string{"", strings.Repeat("é", 16), strings.Repeat("x", 32)} {
		ok(t, "open", h.Open(ctx, id, file, filesystem.HandleRead))
		err := h.Open(ctx, id, file+"none", filesystem.HandleRead)
		wantError(t, "again", err, filesystem.InvalidInput, "file handle `"+id+"` already exists")
		for range 2 {
			ok(t, "close", h.CloseHandle(id))
		}
		if _, _, err := h.ReadBlock(ctx, id, 0, 1, nil); err == nil {
			t.Errorf("%q is still open", id)
		}
	}
	kind, _ := filesystem.Classify(h.Open(ctx, "a", file+"none", filesystem.HandleRead))
	if kind != filesystem.NotFound {
		t.Errorf("missing file: %v", kind)
	}
	ok(t, "open after a failure", h.Open(ctx, "a", file, filesystem.HandleRead))
}

func TestHandleLimit(t *testing.T) {
	ctx := context.Background()
	var h filesystem.Handles
	defer h.Close()
	file := put(t, filepath.Join(t.TempDir(), "f"), "x")
	for i := range filesystem.MaxHandles {
		mode := filesystem.HandleMode(i % 2)
		ok(t, "open", h.Open(ctx, fmt.Sprint(i), file, mode))
	}
	const full = "at most 128 file handles may be open per connection"
	wantError(t, "one more", h.Open(ctx, "x", file, filesystem.HandleRead), filesystem.InvalidInput, full)
	wantError(t, "missing file", h.Open(ctx, "x", file+"none", filesystem.HandleRead), filesystem.InvalidInput, full)
	ok(t, "close", h.CloseHandle("7"))
	ok(t, "open", h.Open(ctx, "x", file, filesystem.HandleRead))
	h.Close()
	if err := h.Open(ctx, "y", file, filesystem.HandleRead); err == nil {
		t.Error("opened after Close")
	}
	ok(t, "close", h.CloseHandle("x"))
}

func TestReplaceHandle(t *testing.T) {
	ctx := context.Background()
	var h filesystem.Handles
	defer h.Close()
	dir := t.TempDir()
	file := put(t, filepath.Join(dir, "f"), "old content")
	info, err := os.Stat(file)
	ok(t, "stat", err)
	ok(t, "open", h.Open(ctx, "w", file, filesystem.HandleReplace))
	if got := content(t, file); got != "" {
		t.Errorf("opened: holds %q", got)
	}
	ok(t, "write", h.WriteBlock(ctx, "w", 3, []byte("lo")))
	if got := content(t, file); got != "\x00\x00\x00lo" {
		t.Errorf("gap: holds %q", got)
	}
	ok(t, "write", h.WriteBlock(ctx, "w", 0, []byte("hel")))
	if got := content(t, file); got != "hello" {
		t.Errorf("holds %q", got)
	}
	if after, err := os.Stat(file); err != nil || !os.SameFile(info, after) {
		t.Errorf("not the same file any more: %v", err)
	}

	const badLength = "file write block length must be between 1 and 1048576"
	const badRange = "file write range exceeds the signed 64-bit file offset limit"
	wantError(t, "empty block", h.WriteBlock(ctx, "w", 0, nil), filesystem.InvalidInput, badLength)
	wantError(t, "empty block", h.WriteBlock(ctx, "none", 0, nil), filesystem.InvalidInput, badLength)
	wantError(t, "large block", h.WriteBlock(ctx, "w", 0, make([]byte, filesystem.MaxBlock+1)), filesystem.InvalidInput, badLength)
	for _, offset := range []uint64{math.MaxInt64 - 1, math.MaxInt64 + 1, math.MaxUint64} {
		wantError(t, "range", h.WriteBlock(ctx, "w", offset, []byte("hi")), filesystem.InvalidInput, badRange)
	}
	wantError(t, "unknown", h.WriteBlock(ctx, "none", 0, []byte("x")), filesystem.NotFound, "unknown file handle `none`")
	ok(t, "the handle survives all that", h.WriteBlock(ctx, "w", 0, bytes.Repeat([]byte("x"), filesystem.MaxBlock)))

	_, _, err = h.ReadBlock(ctx, "w", 0, 0, nil)
	wantError(t, "length", err, filesystem.InvalidInput, "file read block length must be between 1 and 1048576")
	_, _, err = h.ReadBlock(ctx, "w", 0, 1, nil)
	if kind, _ := filesystem.Classify(err); err == nil || kind != filesystem.Other {
		t.Errorf("read from a writer: %v", err)
	}
	_, _, err = h.ReadBlock(ctx, "w", 0, 1, nil)
	wantError(t, "dropped", err, filesystem.NotFound, "unknown file handle `w`")

	ok(t, "open", h.Open(ctx, "r", file, filesystem.HandleRead))
	if err := h.WriteBlock(ctx, "r", 0, []byte("x")); err == nil {
		t.Error("wrote to a reader")
	}
	if _, _, err := h.ReadBlock(ctx, "r", 0, 1, nil); err != nil {
		t.Errorf("the reader did not survive: %v", err)
	}
	ok(t, "new file", h.Open(ctx, "n", filepath.Join(dir, "new"), filesystem.HandleReplace))
	ok(t, "close", h.CloseHandle("n"))
	leftovers(t, dir, "f", "new")
}

// TestHandlesConcurrently opens, uses and closes the same ids from several goroutines.
func TestHandlesConcurrently(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	file := put(t, filepath.Join(dir, "f"), strings.Repeat("x", 1000))
	var h filesystem.Handles
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			id := fmt.Sprint(i % 4)
			for range 200 {
				switch i / 4 {
				case 0, 1:
					h.Open(ctx, id, file, filesystem.HandleRead)
				case 2:
					got, _, err := h.ReadBlock(ctx, id, 500, 100, nil)
					if err == nil && string(got) != strings.Repeat("x", 100) {
						t.Errorf("read %q", got)
					}
					if _, unknown := errors.AsType[*filesystem.UnknownHandleError](err); err != nil && !unknown {
						t.Error(err)
					}
				default:
					h.CloseHandle(id)
				}
			}
		})
	}
	wg.Wait()
	h.Close()
}
