//go:build !linux

package sandbox

import (
	"io/fs"
	"time"
)

// isOwn returns false. A system without sandboxes never calls it.
func isOwn(fs.FileInfo) bool { return false }

func inode(fs.FileInfo) uint64 { return 0 }

func changeTime(info fs.FileInfo) time.Time { return info.ModTime() }
