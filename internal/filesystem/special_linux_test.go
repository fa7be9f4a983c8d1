package filesystem_test

import (
	"context"
	"os"
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
			if _, watching := w.Arm(ctx, 1, []string{path, path + "/x"}, path); watching {
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
