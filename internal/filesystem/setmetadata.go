package filesystem

import (
	"context"
	"io/fs"
	"path/filepath"
	"time"
)

// Changes are what SetMetadata changes. A nil field changes nothing.
type Changes struct {
	Links    Links
	Mode     *fs.FileMode // permission bits, whatever the umask
	Size     *int64       // of a regular file: cuts it, or extends it with zeros
	Modified *time.Time
}

// SetMetadata changes the size, the mode and the time of modification of a file, in this
// order. If one fails, the earlier ones have happened. With Follow it changes the target
// of a link. With NoFollow a link is a [Refusal].
func SetMetadata(ctx context.Context, path string, changes Changes) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return setMetadata(path, changes)
}

// Symlink creates a symbolic link with the text target. An existing file at path is
// EEXIST. With NoFollow, path may not lead over a link.
func Symlink(ctx context.Context, target, path string, links Links) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := checkPath(path); err != nil {
		return err
	}
	return symlink(target, filepath.Clean(path), links)
}

// ReadLink returns the text of a symbolic link. Another file is EINVAL. With NoFollow,
// path may not lead over another link.
func ReadLink(ctx context.Context, path string, links Links) (string, error) {
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err := checkPath(path); err != nil {
		return "", err
	}
	return readLink(filepath.Clean(path), links)
}
