//go:build unix

package broker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lockFile is in the directory of every gateway, and locked while one uses it.
const lockFile = "gateway.lock"

// OpenData makes a directory, if there is none, and keeps other gateways from using it until
// it is closed. It refuses a directory that has something else in it.
func OpenData(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, lockFile)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(path); err != nil && len(entries) > 0 {
		return nil, fmt.Errorf("%s is not empty, and no gateway has used it; name a directory that nothing else uses", dir)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return file, nil
	}
	_ = file.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("another gateway uses %s; each needs a directory of its own", dir)
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}
