package filesystem

import (
	"context"
	"fmt"
	"os"
	"testing"

	"execserver/internal/testkit"
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

// FlushWatcher waits until a Watcher has noted a change of path, and has it report what it
// has noted as if the time of Debounce were over.
func FlushWatcher(t *testing.T, w *Watcher, path string) {
	t.Helper()
	testkit.WaitFor(t, testkit.Patience, func() error {
		w.journal.mu.Lock()
		defer w.journal.mu.Unlock()
		if w.journal.pending[path].kind == 0 {
			return fmt.Errorf("nothing is noted about %s", path)
		}
		return nil
	})
	w.journal.flush()
}

// ReadFile reads a regular file whole.
func ReadFile(ctx context.Context, path string, options ReadOptions) ([]byte, error) {
	f, err := Open(ctx, path, options)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.readAll(ctx)
}

// Writers returns how many writers have or wait for a keyedLock.
func Writers() (n int) {
	writeLocks.mu.Lock()
	defer writeLocks.mu.Unlock()
	for _, keyedLock := range writeLocks.locks {
		n += keyedLock.users
	}
	return n
}
