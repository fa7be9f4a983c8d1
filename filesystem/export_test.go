package filesystem

import (
	"os"
	"testing"
)

// OnSync calls saw whenever something is written to disk for good.
func OnSync(t *testing.T, saw func(*os.File)) {
	old := fsync
	fsync = func(f *os.File) error {
		saw(f)
		return old(f)
	}
	t.Cleanup(func() { fsync = old })
}
