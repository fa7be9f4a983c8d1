//go:build !linux

package filesystem

import (
	"os"
	"syscall"
)

func rename(from, to string, options RenameOptions) error {
	for _, path := range []string{from, to} {
		if err := guard(path, options.Links); err != nil {
			return err
		}
		if info, err := os.Lstat(path); err == nil && options.Links == NoFollow && isLink(info.Mode()) {
			return &Refusal{textLinkInPath}
		}
	}
	if options.NoReplace {
		if _, err := os.Lstat(to); err == nil {
			return pathError("rename", from, syscall.EEXIST)
		}
	}
	return pathError("rename", from, os.Rename(from, to))
}
