package filesystem

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
)

// RemoveOptions are the options of Remove.
type RemoveOptions struct {
	Links     Links
	Recursive bool // remove a directory with everything in it
	Force     bool // a missing file, or a missing directory on the way, is fine
}

// Remove removes a file, a directory or a link itself. It never leaves the tree that it
// removes, even while another program replaces directories in it with links. It continues
// after an error and returns the first.
func Remove(ctx context.Context, path string, options RemoveOptions) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := checkPath(path); err != nil {
		return err
	}
	err := remove(ctx, filepath.Clean(path), options)
	if options.Force && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
