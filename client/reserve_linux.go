package client

import (
	"os"

	"execserver/internal/sys"
)

// reserveRoom reserves room for the content of a file, if the file system can, so that a full
// disk is noticed while the old content is still whole.
func reserveRoom(file *os.File, size int64) error { return sys.ReserveRoom(int(file.Fd()), size) }
