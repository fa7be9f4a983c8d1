package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A mount needs a directory to be mounted on. Where this user may make none, the namespace
// gets a directory in memory in the place of the one above: it has everything that was
// there, by bind mounts, and room for more. It becomes read-only, as the directory was for
// this user.

// maxCovered bounds the names in a directory that is covered.
const maxCovered = 1024

// cover covers a directory. The caller must seal it once it has what is missing.
func cover(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && unix.Access(dir, unix.X_OK) == nil {
		return err
	} // otherwise nothing in it is there for this user, such as in another's home directory
	if len(entries) > maxCovered {
		return fmt.Errorf("it has more than %d names, and this user may not change it", maxCovered)
	}
	under := make(map[string]*os.File) // what the mount will hide
	defer func() {
		for _, file := range under {
			_ = file.Close()
		}
	}()
	links := make(map[string]string)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.Type() == fs.ModeSymlink {
			if links[e.Name()], err = os.Readlink(path); err != nil {
				return err
			}
			continue
		}
		fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		under[e.Name()] = os.NewFile(uintptr(fd), path)
	}
	at := dir
	if dir == "/" { // nothing can be mounted over it: another root takes its place
		if at, err = beside(entries); err != nil {
			return err
		}
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=4m"); err != nil {
		return &os.PathError{Op: "mount on", Path: at, Err: err}
	}
	for name, text := range links {
		if err := os.Symlink(text, filepath.Join(at, name)); err != nil {
			return err
		}
	}
	for name, file := range under {
		if err := repeat(file, filepath.Join(at, name)); err != nil {
			return err
		}
	}
	if dir == "/" {
		return becomeRoot(at)
	}
	return nil
}

// beside returns a directory in the root on which the other root can be mounted until it
// takes the place of the first. It must not hide /proc, which bind uses.
func beside(entries []fs.DirEntry) (string, error) {
	for _, e := range entries {
		if e.IsDir() && e.Name() != "proc" {
			return "/" + e.Name(), nil
		}
	}
	return "", errors.New("there is no directory")
}

// repeat shows a file or directory under another path.
func repeat(file *os.File, path string) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.Mkdir(path, 0o755)
	} else {
		err = os.WriteFile(path, nil, 0o644)
	}
	if err != nil {
		return err
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	target := os.NewFile(uintptr(fd), path)
	defer target.Close()
	return bind(file, target)
}

// becomeRoot makes a mount the root of the namespace.
func becomeRoot(at string) error {
	if err := os.Chdir(at); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return os.NewSyscallError("change the root of the namespace", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil { // the former root, which is on top
		return os.NewSyscallError("unmount the former root", err)
	}
	return os.Chdir("/")
}

// seal makes a cover read-only.
func seal(path string) error {
	err := unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "")
	if err != nil {
		return &os.PathError{Op: "make read-only", Path: path, Err: err}
	}
	return nil
}
