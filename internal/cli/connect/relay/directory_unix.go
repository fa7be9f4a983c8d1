//go:build unix

package relay

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// runDirectory is the directory below Options.Dir that has a directory for each server. It is not in
// XDG_RUNTIME_DIR, which is removed when the user logs out.
const runDirectory = "run"

// directory has the files of a server.
type directory struct {
	path string
	file *os.File
}

// openDirectory opens the directory of the server with these flags, and makes it first with create.
func openDirectory(opts *Options, create bool) (*directory, error) {
	base, err := baseDirectory(opts.Dir)
	if err != nil {
		return nil, err
	}
	if create {
		if err := os.MkdirAll(base, 0o700); err != nil {
			return nil, err
		}
	}
	path := base
	for _, name := range []string{"", runDirectory, serverName(opts.Flags)} {
		path = filepath.Join(path, name)
		if create && name != "" {
			if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, err
			}
		}
		if err := checkPrivate(path); err != nil {
			return nil, err
		}
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &directory{path, file}, nil
}

// baseDirectory returns the absolute path of Options.Dir.
func baseDirectory(dir string) (string, error) {
	if below, ok := strings.CutPrefix(dir, "~/"); ok {
		home, err := os.UserHomeDir()
		return filepath.Join(home, below), err
	}
	if dir != "" {
		return filepath.Clean(dir), nil
	}
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "exec-server"), err
}

// checkPrivate refuses a directory in which another user could replace a file.
func checkPrivate(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	unsafe := func(format string, args ...any) error {
		return fmt.Errorf("the directory %s is not safe for the files of a server: "+format+"; remove it, or use another one with --remote-dir DIR",
			append([]any{path}, args...)...)
	}
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		return unsafe("it is a symbolic link")
	case !info.IsDir():
		return unsafe("it is not a directory")
	case owner != os.Geteuid():
		return unsafe("it belongs to the user %d", owner)
	case info.Mode().Perm()&0o022 != 0:
		return unsafe("its permissions are %04o, so that other users can write in it", info.Mode().Perm())
	}
	return nil
}

// serverName returns the name of the directory of a server. Containers may share a home, but not a
// server: it would start processes in the wrong one. After a boot the name is a new one, so no file
// from before it can mislead.
func serverName(flags []string) string {
	hash := sha256.New()
	add := func(text string) { fmt.Fprintf(hash, "%d %s\n", len(text), text) }
	add(fmt.Sprint(os.Geteuid()))
	for _, fact := range machineFacts() {
		add(fact)
	}
	for _, flag := range flags {
		add(flag)
	}
	return hex.EncodeToString(hash.Sum(nil)[:8])
}

// rootIdentity returns the device and the inode of the root directory.
func rootIdentity() string {
	info, err := os.Stat("/")
	if err != nil {
		return ""
	}
	st := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// dial connects to the server. Its error is ErrGone if none listens.
func (d *directory) dial() (*net.UnixConn, error) {
	path := SocketPath(d.file)
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("connect to the server at %s: %w", filepath.Join(d.path, "socket"), err)
	}
	return conn, nil
}

// forgotten is the age of the files of a server that are removed when another one is started.
const forgotten = 30 * 24 * time.Hour

// prune removes old directories of servers that do not run, as those from before a boot.
func (d *directory) prune() {
	entries, _ := os.ReadDir(filepath.Dir(d.path)) // what cannot be read stays
	for _, entry := range entries {
		path := filepath.Join(filepath.Dir(d.path), entry.Name())
		info, err := os.Lstat(filepath.Join(path, "lock"))
		if path == d.path || err != nil || time.Since(info.ModTime()) < forgotten || checkPrivate(path) != nil {
			continue
		}
		file, err := os.Open(path)
		if err != nil {
			continue
		}
		old := &directory{path, file}
		if conn, err := old.dial(); err == nil {
			_ = conn.Close()
		} else if held, err := tryLock(filepath.Join(path, "lock")); errors.Is(err, errLocked) {
			// somebody starts a server there
		} else if err == nil {
			for _, name := range []string{"socket", "program", "log", "lock"} {
				_ = os.Remove(filepath.Join(path, name))
			}
			_ = os.Remove(path)
			_ = held.Close()
		}
		_ = file.Close()
	}
}
