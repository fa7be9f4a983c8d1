package client

import (
	"errors"
	"os"
	"syscall"
)

// keepSize is FALLOC_FL_KEEP_SIZE.
const keepSize = 1

// reserve reserves room for the content of a file, if the file system can, so that a full
// disk is noticed while the old content is still whole.
func reserve(file *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	err := syscall.Fallocate(int(file.Fd()), keepSize, 0, size)
	for errors.Is(err, syscall.EINTR) {
		err = syscall.Fallocate(int(file.Fd()), keepSize, 0, size)
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG) {
		return err
	}
	return nil
}
