package filesystem

import (
	"context"
	"path/filepath"
)

// RenameOptions are the options of Rename.
type RenameOptions struct {
	Links     Links
	NoReplace bool // an existing destination is an error (EEXIST)
}

// Rename moves a file or directory within a file system, and replaces the destination as
// rename(2) does. It moves a link itself. Between file systems the error is EXDEV; the
// caller may copy instead.
func Rename(ctx context.Context, from, to string, options RenameOptions) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, path := range []string{from, to} {
		if err := checkPath(path); err != nil {
			return err
		}
	}
	return rename(filepath.Clean(from), filepath.Clean(to), options)
}
