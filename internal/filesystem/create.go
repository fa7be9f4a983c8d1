package filesystem

import (
	"context"
	"io/fs"
	"path/filepath"
)

// CreateDirectoryOptions are the options of CreateDirectory.
type CreateDirectoryOptions struct {
	Links Links

	// Recursive creates missing parents too, and accepts an existing directory.
	Recursive bool

	// Mode, if not nil, is the mode of the directory itself if it is new, whatever the
	// umask. Otherwise, and for the parents, it is 0777 minus the umask.
	Mode *fs.FileMode
}

// CreateDirectory creates a directory.
func CreateDirectory(ctx context.Context, path string, options CreateDirectoryOptions) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := checkPath(path); err != nil {
		return err
	}
	return createDirectory(ctx, filepath.Clean(path), options)
}
