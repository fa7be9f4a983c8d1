//go:build unix

package auth

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// checkFile refuses a file that others can change or, if it is secret, read. The error
// includes the remedy.
func checkFile(path string, info fs.FileInfo, kind FileKind) error {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to the user %d, who could change it; it must belong to the user %d, as whom this program runs, or to root",
			st.Uid, os.Geteuid())
	}
	switch mode := info.Mode().Perm(); {
	case kind == SecretFile && mode&0o077 != 0:
		return fmt.Errorf("its permissions are %04o, so that others can read or change it; run: chmod 600 %s", mode, path)
	case mode&0o022 != 0:
		return fmt.Errorf("its permissions are %04o, so that others can change it; run: chmod go-w %s", mode, path)
	}
	return nil
}

// setSocketMode gives an unbound socket a mode. On systems that refuse this, the caller sets
// the mode by path.
func setSocketMode(fd uintptr, mode fs.FileMode) { _ = syscall.Fchmod(int(fd), uint32(mode)) }

// checkSocketDirectory refuses a directory in which another user except root can replace a
// socket of this program.
func checkSocketDirectory(dir string) error {
	dir, err := filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return err
	}
	for ; ; dir = filepath.Dir(dir) {
		info, err := os.Lstat(dir)
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
			return fmt.Errorf("the directory %s belongs to the user %d, who could replace the socket; "+
				"choose one that belongs, with all around it, to the user %d, as whom this program runs, or to root", dir, st.Uid, os.Geteuid())
		}
		if mode := info.Mode(); mode&0o022 != 0 && mode&fs.ModeSticky == 0 {
			return fmt.Errorf("the permissions of the directory %s are %04o, so that others could replace the socket; run: chmod go-w %s",
				dir, mode.Perm(), dir)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}
