package filesystem

import (
	"context"
	"errors"
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
