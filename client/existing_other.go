//go:build !linux

package client

import (
	"os"
	"syscall"
)

func keepAttributes(*os.File, *os.File) error { return syscall.ETXTBSY }
