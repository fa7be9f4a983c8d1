//go:build !linux

package filesystem

import (
	"context"
	"errors"
	"os"
)

// ErrMagicLink is the error for links that only Linux has.
var ErrMagicLink = errors.New("the path may lead over a link of a process")

// OpenPath opens a file to identify it.
func OpenPath(path string, _ Links) (*os.File, error) { return os.Open(path) }

// OpenPlain opens a regular file to read it.
func OpenPlain(ctx context.Context, path string, links Links) (*os.File, error) {
	if links == NoFollow {
		return OpenNoFollow(path)
	}
	return OpenFile(ctx, path, HandleRead, 0)
}
