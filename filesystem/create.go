package filesystem

import (
	"context"
	"path/filepath"
)

// CreateDirectoryOptions are the options of CreateDirectory.
type CreateDirectoryOptions struct {
	Links Links

	// Recursive creates missing parents too, and is content with a directory
	// that is already there.
	Recursive bool
}

// CreateDirectory creates a directory with mode 0777 minus the umask.
func CreateDirectory(ctx context.Context, path string, options CreateDirectoryOptions) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := checkPath(path); err != nil {
		return err
	}
	return createDirectory(ctx, filepath.Clean(path), options)
}
