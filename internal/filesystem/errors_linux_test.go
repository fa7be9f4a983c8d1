package filesystem_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/filesystem"
)

// TestSystemErrnoCodesAndTexts provokes every system error that the documentation of the
// protocol lists.
func TestSystemErrnoCodesAndTexts(t *testing.T) {
	ctx := context.Background()
	follow := filesystem.Follow
	read := func(path string) error {
		_, err := filesystem.ReadFile(ctx, path, filesystem.ReadOptions{})
		return err
	}
	write := func(path string) error {
		return filesystem.WriteFile(ctx, path, []byte("new"), filesystem.WriteOptions{})
	}
	tests := []struct {
		name  string
		kind  filesystem.Kind
		text  string
		cause func(t *testing.T) error
	}{
		{"ENOENT", filesystem.NotFound, notFound, func(t *testing.T) error {
			return read(t.TempDir() + "/none")
		}},
		{"EPERM", filesystem.InvalidInput, "operation not permitted (os error 1)", func(t *testing.T) error {
			file := put(t, t.TempDir()+"/f", "old")
			setImmutable(t, file)
			return write(file)
		}},
		{"EACCES", filesystem.InvalidInput, "permission denied (os error 13)", func(t *testing.T) (err error) {
			file := put(t, sharedDir(t)+"/f", "old")
			ok(t, "chmod", os.Chmod(file, 0o600))
			asNobody(t, func() { err = read(file) })
			return err
		}},
		{"EINVAL", filesystem.InvalidInput, "invalid argument (os error 22)", func(t *testing.T) error {
			dir := mkdir(t, t.TempDir()+"/d")
			return filesystem.Rename(ctx, dir, dir+"/below", filesystem.RenameOptions{})
		}},
		{"EEXIST", filesystem.Other, exists, func(t *testing.T) error {
			return filesystem.CreateDirectory(ctx, put(t, t.TempDir()+"/f", ""), filesystem.CreateDirectoryOptions{})
		}},
		{"ENOTDIR", filesystem.Other, notDir, func(t *testing.T) error {
			_, err := filesystem.GetMetadata(ctx, put(t, t.TempDir()+"/f", "")+"/below", follow)
			return err
		}},
		{"EISDIR", filesystem.Other, isDir, func(t *testing.T) error { return write(t.TempDir()) }},
		{"ENOTEMPTY", filesystem.Other, "directory not empty (os error 39)", func(t *testing.T) error {
			dir := t.TempDir()
			put(t, dir+"/d/f", "")
			return filesystem.Remove(ctx, dir+"/d", filesystem.RemoveOptions{})
		}},
		{"ELOOP", filesystem.Other, "too many levels of symbolic links (os error 40)", func(t *testing.T) error {
			return read(symlink(t, "loop", t.TempDir()+"/loop"))
		}},
		{"ENAMETOOLONG", filesystem.Other, "file name too long (os error 36)", func(t *testing.T) error {
			return write(filepath.Join(t.TempDir(), strings.Repeat("x", 300)))
		}},
		{"ENOSPC", filesystem.Other, "no space left on device (os error 28)", func(t *testing.T) error {
			return filesystem.WriteFile(ctx, mountTmpfs(t, "size=64k")+"/f", make([]byte, 200_000), filesystem.WriteOptions{})
		}},
		{"EIO", filesystem.Other, "input/output error (os error 5)", func(t *testing.T) error {
			return read("/proc/self/mem") // nothing is mapped at address 0
		}},
		{"EBUSY", filesystem.Other, "device or resource busy (os error 16)", func(t *testing.T) error {
			return filesystem.Remove(ctx, mountTmpfs(t, ""), filesystem.RemoveOptions{Recursive: true, Force: true})
		}},
		{"ETXTBSY", filesystem.Other, "text file busy (os error 26)", func(t *testing.T) error {
			program := runningProgram(t)
			ok(t, "link", os.Link(program, t.TempDir()+"/other")) // so that it cannot be replaced
			return write(program)
		}},
		{"EROFS", filesystem.Other, "read-only file system (os error 30)", func(t *testing.T) error {
			return write(mountTmpfs(t, "ro") + "/f")
		}},
		{"ENXIO", filesystem.Other, "no such device or address (os error 6)", func(t *testing.T) error {
			return read(socket(t, t.TempDir()+"/s"))
		}},
		{"EBADF", filesystem.Other, "bad file descriptor (os error 9)", func(t *testing.T) error {
			var h filesystem.Handles
			defer h.Close()
			ok(t, "open", h.Open(ctx, "r", put(t, t.TempDir()+"/f", ""), filesystem.HandleRead))
			return h.WriteBlock(ctx, "r", 0, []byte("x"))
		}},
		{"EXDEV", filesystem.Other, "invalid cross-device link (os error 18)", func(t *testing.T) error {
			return filesystem.Rename(ctx, put(t, t.TempDir()+"/f", ""), mountTmpfs(t, "")+"/f", filesystem.RenameOptions{})
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { wantError(t, tt.name, tt.cause(t), tt.kind, tt.text) })
	}
}

func TestClassifyOtherErrors(t *testing.T) {
	for _, tt := range []struct {
		err  error
		kind filesystem.Kind
		text string
	}{
		{io.ErrUnexpectedEOF, filesystem.Other, "unexpected EOF"},
		{context.Canceled, filesystem.Other, "context canceled"},
		{os.ErrNotExist, filesystem.NotFound, "file does not exist"},
		{syscall.ENOTBLK, filesystem.Other, "block device required (os error 15)"},
		{&os.LinkError{Op: "link", Err: syscall.EMLINK}, filesystem.Other, "too many links (os error 31)"},
	} {
		wantError(t, tt.err.Error(), tt.err, tt.kind, tt.text)
	}
}

func setImmutable(t *testing.T, path string) {
	t.Helper()
	const immutable = 0x10
	f, err := os.Open(path)
	ok(t, "open", err)
	defer f.Close()
	fd := int(f.Fd())
	flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, flags|immutable)
	}
	if err != nil {
		t.Skip("cannot make files immutable here: ", err)
	}
	t.Cleanup(func() {
		if f, err := os.Open(path); err == nil {
			defer f.Close()
			unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
		}
	})
}

// runningProgram returns the path of a program that is being executed.
func runningProgram(t *testing.T) string {
	t.Helper()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	data, err := os.ReadFile(sleep)
	ok(t, "read", err)
	path := t.TempDir() + "/sleep"
	ok(t, "write", os.WriteFile(path, data, 0o755))
	cmd := exec.Command(path, "100")
	ok(t, "start", cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return path
}
