package filesystem

import (
	"context"
	"os"
	"testing"
)

// OnSync calls saw whenever a file or directory is synced to disk.
func OnSync(t *testing.T, saw func(*os.File)) {
	old := fsync
	fsync = func(f *os.File) error {
		saw(f)
		return old(f)
	}
	t.Cleanup(func() { fsync = old })
}

// Open opens a regular file under an id.
func (h *Handles) Open(ctx context.Context, id, path string, mode HandleMode) error {
	return h.OpenWith(ctx, id, path, mode, func(ctx context.Context, path string, mode HandleMode) (*os.File, error) {
		return OpenFile(ctx, path, mode, 0o666)
	})
}
