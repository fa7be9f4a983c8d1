package client_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/client"
)

// TestCopyOverRunningPrograms checks that programs can be replaced that are running, and that
// they keep everything but the content and the inode.
func TestCopyOverRunningPrograms(t *testing.T) {
	bothWays(t, func(t *testing.T, copy func(*client.Environment, string, string, *client.CopyOptions) error) {
		env := openWebSocket(t, nil)
		source, target := t.TempDir(), t.TempDir()
		before := map[string]fs.FileInfo{}
		for _, name := range []string{"small", "large", "linked"} {
			program := exec.Command(filepath.Join(target, name))
			// A child of another test could have a descriptor of a file that this program wrote.
			out, err := exec.Command("sh", "-c", `cp "$(command -v cat)" "$1"; chmod 751 "$1"; test "$2" = small || head -c 1000000 /dev/zero >> "$1"`,
				"sh", program.Path, name).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if err := unix.Setxattr(program.Path, "user.test", []byte("value"), 0); err != nil {
				t.Skip("no extended attributes here: ", err)
			}
			if os.Geteuid() == 0 {
				if err := os.Chown(program.Path, 1234, 5678); err != nil {
					t.Fatal(err)
				}
			}
			stdin, err := program.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := program.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = errors.Join(stdin.Close(), program.Wait()) })
			if before[name], err = os.Stat(program.Path); err != nil {
				t.Fatal(err)
			}
			size := 1<<20 + 7
			if name == "small" {
				size = 7
			}
			if err := os.WriteFile(filepath.Join(source, name), bytes.Repeat([]byte("new"), size), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Link(filepath.Join(target, "linked"), filepath.Join(t.TempDir(), "other")); err != nil {
			t.Fatal(err)
		}
		w := watch()
		err := copy(env, source, target, &w.CopyOptions)
		if !errors.Is(err, syscall.ETXTBSY) || w.last.Failed != 1 || w.last.Files != 2 || w.last.Replaced != 2 {
			t.Errorf("%+v, %v", w.last, err)
		}
		for name, was := range before {
			after, err := os.Stat(filepath.Join(target, name))
			if err != nil {
				t.Fatal(err)
			}
			if name == "linked" {
				if !os.SameFile(was, after) || after.Size() != was.Size() {
					t.Errorf("%s: %v %d, same file: %v", name, after.Mode(), after.Size(), os.SameFile(was, after))
				}
				continue
			}
			from, err := os.Stat(filepath.Join(source, name))
			if err != nil {
				t.Fatal(err)
			}
			one, other := was.Sys().(*syscall.Stat_t), after.Sys().(*syscall.Stat_t)
			value := make([]byte, 10)
			n, err := unix.Getxattr(filepath.Join(target, name), "user.test", value)
			if os.SameFile(was, after) || after.Size() != from.Size() || after.Mode() != 0o751 || !after.ModTime().Equal(from.ModTime()) ||
				one.Uid != other.Uid || one.Gid != other.Gid || string(value[:max(n, 0)]) != "value" {
				t.Errorf("%s: %d bytes, %v of %d:%d at %v, attribute %q, %v", name, after.Size(), after.Mode(), other.Uid, other.Gid, after.ModTime(), value[:max(n, 0)], err)
			}
		}
		if names, err := os.ReadDir(target); err != nil || len(names) != len(before) {
			t.Errorf("the target holds %v, %v", names, err)
		}
	})
}
