package filesystem_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/filesystem"
)

// TestSpecialFilesNeverBlock checks that requests end, whatever kind of file they name,
// and change nothing that existed before.
func TestSpecialFilesNeverBlock(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	held := mkfifo(t, dir+"/held-fifo") // another program reads and writes it
	fd, err := unix.Open(held, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	ok(t, "open", err)
	defer unix.Close(fd)
	special := map[string]string{
		"fifo":           mkfifo(t, dir+"/fifo"),
		"held fifo":      held,
		"link to a fifo": symlink(t, "fifo", dir+"/link"),
		"socket":         socket(t, dir+"/socket"),
		"/dev/zero":      "/dev/zero",
		"/dev/null":      "/dev/null",
		"/dev/full":      "/dev/full",
		"/dev/tty":       "/dev/tty",
		"/dev/ptmx":      "/dev/ptmx",
		"/dev/urandom":   "/dev/urandom",
		"kernel log":     "/proc/kmsg",
	}
	if err := unix.Mknod(dir+"/block", unix.S_IFBLK|0o600, int(unix.Mkdev(7, 200))); err == nil {
		special["block device"] = dir + "/block"
	}
	for name, path := range special {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		for _, links := range []filesystem.Links{filesystem.Follow, filesystem.NoFollow} {
			within(t, "GetMetadata "+name, func() { filesystem.GetMetadata(ctx, path, links) })
			within(t, "ReadFile "+name, func() {
				_, err := filesystem.ReadFile(ctx, path, filesystem.ReadOptions{Links: links})
				if err == nil && name != "kernel log" {
					t.Errorf("ReadFile %s succeeded", name)
				}
			})
			within(t, "WriteFile "+name, func() {
				if name == "kernel log" {
					return
				}
				err := filesystem.WriteFile(ctx, path, []byte("x"), filesystem.WriteOptions{Links: links})
				if device := name == "/dev/null" || name == "/dev/zero" || name == "/dev/urandom"; links == filesystem.Follow && device != (err == nil) && name != "/dev/ptmx" && name != "/dev/tty" {
					t.Errorf("WriteFile %s: %v", name, err)
				}
			})
			within(t, "CreateDirectory "+name, func() {
				if filesystem.CreateDirectory(ctx, path, filesystem.CreateDirectoryOptions{Links: links, Recursive: true}) == nil {
					t.Errorf("CreateDirectory %s succeeded", name)
				}
			})
		}
		within(t, "ReadDirectory "+name, func() {
			_, err := readDirectory(ctx, path)
			wantError(t, "ReadDirectory "+name, err, filesystem.Other, notDir)
		})
		within(t, "Canonicalize "+name, func() { filesystem.Canonicalize(ctx, path) })
		within(t, "Copy from "+name, func() {
			err := filesystem.Copy(ctx, path, dir+"/copy", filesystem.CopyOptions{Recursive: true})
			if name != "link to a fifo" && name != "kernel log" {
				wantError(t, "Copy from "+name, err, filesystem.InvalidInput, "fs/copy only supports regular files, directories, and symlinks")
			}
			os.Remove(dir + "/copy")
		})
		within(t, "Copy onto "+name, func() {
			if name != "kernel log" {
				filesystem.Copy(ctx, put(t, dir+"/f", "x"), path, filesystem.CopyOptions{})
			}
		})
		within(t, "Walk "+name, func() {
			if r, err := filesystem.Walk(ctx, path, walkAll); err != nil || len(r.Entries)+len(r.Errors) > 0 {
				t.Errorf("Walk %s: %+v, %v", name, r, err)
			}
		})
		var h filesystem.Handles
		within(t, "Open "+name, func() {
			if h.Open(ctx, "r", path, filesystem.HandleRead) == nil && name != "kernel log" {
				t.Errorf("Open %s succeeded", name)
			}
		})
		within(t, "Open to replace "+name, func() {
			if name != "kernel log" && h.Open(ctx, "w", path, filesystem.HandleReplace) == nil {
				t.Errorf("Open to replace %s succeeded", name)
			}
		})
		h.Close()
		within(t, "NewWatcher "+name, func() {
			if w, err := filesystem.NewWatcher(ctx, path, filesystem.WatchOptions{}); err == nil {
				w.Close()
				t.Errorf("NewWatcher %s succeeded", name)
			}
		})
		within(t, "MissingWatch "+name, func() {
			w := filesystem.NewMissingWatch(func(uint64) {})
			defer w.Close()
			w.Claim(1)
			if _, watching, _ := w.Arm(ctx, 1, []string{path, path + "/x"}, path); watching {
				t.Errorf("MissingWatch %s is watching", name)
			}
		})
	}
	within(t, "Walk", func() {
		if _, err := filesystem.Walk(ctx, dir, walkAll); err != nil {
			t.Error(err)
		}
	})
	within(t, "Copy of a directory", func() {
		ok(t, "copy", filesystem.Copy(ctx, dir, t.TempDir()+"/copy", filesystem.CopyOptions{Recursive: true}))
	})
	within(t, "Rename", func() {
		ok(t, "rename", filesystem.Rename(ctx, dir+"/fifo", dir+"/moved", filesystem.RenameOptions{}))
	})
	within(t, "Remove", func() {
		ok(t, "remove", filesystem.Remove(ctx, dir, filesystem.RemoveOptions{Recursive: true}))
	})
}

// lease takes a lease of a kind on a file. The kernel sends SIGIO when the holder is to give it up.
func lease(t *testing.T, file string, kind int) (holder *os.File) {
	t.Helper()
	flag := os.O_RDWR
	if kind == unix.F_RDLCK {
		flag = os.O_RDONLY
	}
	holder, err := os.OpenFile(file, flag, 0)
	ok(t, "open", err)
	if _, err := unix.FcntlInt(holder.Fd(), unix.F_SETLEASE, kind); err != nil {
		t.Skip("no leases here: ", err)
	}
	return holder
}

// untilAsked calls do, and returns once the holder of a lease was asked to give it up.
func untilAsked(t *testing.T, asked <-chan os.Signal, what string, do func() error) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case <-asked:
	case err := <-done:
		t.Fatalf("%s: %v, and nobody asked the holder", what, err)
	}
	return done
}

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
		what string
		kind int
		do   func() error
		want string
	}{
		{"write", unix.F_RDLCK, func() error { return write(file, "written") }, "written"},
		{"read", unix.F_WRLCK, func() error {
			_, err := filesystem.ReadFile(ctx, file, filesystem.ReadOptions{})
			return err
		}, "written"},
		{"open to read", unix.F_WRLCK, func() error { return h.Open(ctx, "r", file, filesystem.HandleRead) }, "written"},
		{"open to write", unix.F_RDLCK, func() error { return h.Open(ctx, "w", file, filesystem.HandleReplace) }, ""},
	} {
		holder := lease(t, file, tt.kind)
		done := untilAsked(t, asked, tt.what, tt.do)
		_, err := unix.FcntlInt(holder.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
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

// TestAbandonedUnderALease ends the context of operations while they wait for the holder of a lease,
// which does not give it up.
func TestAbandonedUnderALease(t *testing.T) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGIO)
	defer signal.Stop(asked)
	var h filesystem.Handles
	defer h.Close()
	dir := t.TempDir()
	for _, tt := range []struct {
		what string
		kind int
		do   func(ctx context.Context, file string) error
	}{
		{"write", unix.F_RDLCK, func(ctx context.Context, file string) error {
			return filesystem.WriteFile(ctx, file, []byte("new"), filesystem.WriteOptions{})
		}},
		{"read", unix.F_WRLCK, func(ctx context.Context, file string) error {
			_, err := filesystem.ReadFile(ctx, file, filesystem.ReadOptions{})
			return err
		}},
		{"open to read", unix.F_WRLCK, func(ctx context.Context, file string) error {
			return h.Open(ctx, "r", file, filesystem.HandleRead)
		}},
		{"open to write", unix.F_RDLCK, func(ctx context.Context, file string) error {
			return h.Open(ctx, "w", file, filesystem.HandleReplace)
		}},
		{"set the size", unix.F_RDLCK, func(ctx context.Context, file string) error {
			return filesystem.SetMetadata(ctx, file, filesystem.Changes{Size: new(int64)})
		}},
		{"copy", unix.F_WRLCK, func(ctx context.Context, file string) error {
			return filesystem.Copy(ctx, file, dir+"/copy", filesystem.CopyOptions{})
		}},
		{"open without magic links", unix.F_WRLCK, func(ctx context.Context, file string) error {
			f, err := filesystem.OpenNoMagicLinks(ctx, file, filesystem.NoFollow)
			if err == nil {
				_ = f.Close()
			}
			return err
		}},
	} {
		file := put(t, dir+"/"+tt.what, "old")
		holder := lease(t, file, tt.kind)
		ctx, cancel := context.WithCancel(context.Background())
		done := untilAsked(t, asked, tt.what, func() error { return tt.do(ctx, file) })
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, although the client has gone", tt.what, err)
		}
		ok(t, "close", holder.Close())
		if got := content(t, file); got != "old" {
			t.Errorf("%s: the file holds %q", tt.what, got)
		}
	}
}

// TestSweepDoesNotWait writes into a directory where a file that looks like a stale temporary file has
// a lease. The write neither waits for the end of the lease nor removes the file.
func TestSweepDoesNotWait(t *testing.T) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGIO)
	defer signal.Stop(asked)
	dir := t.TempDir()
	decoy := put(t, fmt.Sprintf("%s/.exec-server-%d-0123456789abcdef.tmp", dir, os.Geteuid()), "")
	holder := lease(t, decoy, unix.F_WRLCK)
	defer holder.Close()
	ok(t, "write", write(dir+"/f", "new"))
	// The kernel would have ended the lease before an open that waits has returned.
	if _, err := os.Lstat(decoy); err != nil {
		t.Error("the write has waited for the lease: ", err)
	}
}
