package filesystem_test

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/filesystem"
)

// TestFilesUnderALease reads and writes files on which another program has a lease, as file
// servers do, which it gives up when it is asked to.
func TestFilesUnderALease(t *testing.T) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGIO)
	defer signal.Stop(asked)
	var h filesystem.Handles
	defer h.Close()
	ctx := context.Background()
	file := put(t, t.TempDir()+"/f", "old")
	for _, tt := range []struct {
		what       string
		flag, kind int // of the holder
		do         func() error
		want       string
	}{
		{"write", os.O_RDONLY, unix.F_RDLCK, func() error { return write(file, "written") }, "written"},
		{"read", os.O_RDWR, unix.F_WRLCK, func() error {
			_, err := filesystem.ReadFile(ctx, file, filesystem.ReadOptions{})
			return err
		}, "written"},
		{"open to read", os.O_RDWR, unix.F_WRLCK, func() error { return h.Open(ctx, "r", file, filesystem.HandleRead) }, "written"},
		{"open to write", os.O_RDONLY, unix.F_RDLCK, func() error { return h.Open(ctx, "w", file, filesystem.HandleReplace) }, ""},
	} {
		holder, err := os.OpenFile(file, tt.flag, 0)
		ok(t, "open", err)
		if _, err := unix.FcntlInt(holder.Fd(), unix.F_SETLEASE, tt.kind); err != nil {
			t.Skip("no leases here: ", err)
		}
		done := make(chan error, 1)
		go func() { done <- tt.do() }()
		select {
		case <-asked:
		case err := <-done:
			t.Fatalf("%s: %v, and nobody asked the holder", tt.what, err)
		}
		_, err = unix.FcntlInt(holder.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
		ok(t, "give the lease up", err)
		ok(t, tt.what, <-done)
		ok(t, "close", holder.Close())
		if got := content(t, file); got != tt.want {
			t.Errorf("%s: the file holds %q", tt.what, got)
		}
		h.CloseHandle("r")
		h.CloseHandle("w")
	}
}
