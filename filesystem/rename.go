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

// Rename moves a file or directory within a file system, replacing what is
// there as rename(2) does. A link is moved itself. Between file systems the
// error is EXDEV; copying instead is for the caller to decide.
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
