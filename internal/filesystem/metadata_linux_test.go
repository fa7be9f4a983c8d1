package filesystem_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"execserver/internal/filesystem"
)

// TestSettle gives a new directory its mode, but leaves a directory that another program
// has put in its place as it is.
func TestSettle(t *testing.T) {
	dir := t.TempDir()
	at := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		ok(t, "mkdir", os.Mkdir(path, 0o700))
		ok(t, "chmod", os.Chmod(path, mode))
		return path
	}
	made, wider, foreign := at("made", 0o700), at("wider", 0o755), at("foreign", 0o700)
	ok(t, "symlink", os.Symlink("made", filepath.Join(dir, "link")))
	ok(t, "settle", filesystem.Settle(made, 0o770))
	wants := map[string]os.FileMode{made: 0o770, wider: 0o755, foreign: 0o700}
	if err := filesystem.Settle(wider, 0o750); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a directory that gives more rights: %v", err)
	}
	if err := filesystem.Settle(filepath.Join(dir, "link"), 0o777); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("a link: %v", err)
	}
	if os.Geteuid() == 0 {
		ok(t, "chown", os.Chown(foreign, 61234, 61234))
		if err := filesystem.Settle(foreign, 0o777); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("a directory of another user: %v", err)
		}
	}
	for path, want := range wants {
		if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
}

// TestSetMetadataWhileLinksComeAndGo exchanges a file and a link all the time. Without
// following links, nothing happens to the link's target.
func TestSetMetadataWhileLinksComeAndGo(t *testing.T) {
	dir := t.TempDir()
	target := put(t, dir+"/target", "target")
	ok(t, "chmod", os.Chmod(target, 0o600))
	put(t, dir+"/file", "file")
	ok(t, "symlink", os.Symlink("target", dir+"/link"))
	before, err := os.Stat(target)
	ok(t, "stat", err)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, name := range []string{"/file", "/link"} {
				_ = os.Link(dir+name, dir+"/new")
				_ = os.Rename(dir+"/new", dir+"/name")
				_ = os.Remove(dir + "/new") // a rename of one link over another of the same file does nothing
			}
		}
	}()
	mode, size, modified := os.FileMode(0o777), int64(1), time.Unix(5, 0)
	done, refused := 0, 0
	for end := time.Now().Add(3 * time.Second); (done < 200 || refused < 200) && time.Now().Before(end); {
		err := filesystem.SetMetadata(context.Background(), dir+"/name", filesystem.Changes{
			Links: filesystem.NoFollow, Mode: &mode, Size: &size, Modified: &modified,
		})
		if err == nil {
			done++
		} else {
			refused++
		}
	}
	close(stop)
	<-stopped
	after, err := os.Stat(target)
	ok(t, "stat", err)
	if after.Mode() != before.Mode() || after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("the target is %v with %d bytes of %v, after %d changes of the file", after.Mode(), after.Size(), after.ModTime(), done)
	}
}
