package filesystem

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// DirEntry is one name in a directory. The two kinds are those of a link's
// target, as in [Metadata]; a link that leads nowhere, or where we may not
// look, is an entry like any other with neither kind set.
type DirEntry struct {
	Name        string // raw bytes, not necessarily UTF-8
	IsDirectory bool
	IsFile      bool
	IsSymlink   bool
}

// directoryBatch is how many entries are read between two looks at the context.
const directoryBatch = 1024

// ReadDirectory calls visit for every entry of a directory, in the order the
// system has them, until visit returns false. It follows a link to a directory.
// Its memory does not depend on the size of the directory.
func ReadDirectory(ctx context.Context, path string, visit func(DirEntry) bool) error {
	return eachEntry(ctx, path, func(dir *os.File, e fs.DirEntry) bool {
		entry := DirEntry{Name: e.Name(), IsSymlink: e.Type()&fs.ModeSymlink != 0}
		mode := e.Type()
		if entry.IsSymlink {
			mode = targetMode(dir, path, e.Name())
		}
		entry.IsDirectory, entry.IsFile = mode.IsDir(), mode.IsRegular()
		return visit(entry)
	})
}

// eachEntry calls visit for the entries of a directory until it returns false,
// holding no more than a batch of them.
func eachEntry(ctx context.Context, path string, visit func(dir *os.File, e fs.DirEntry) bool) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := checkPath(path); err != nil {
		return err
	}
	dir, err := openDirectory(path)
	if err != nil {
		return pathError("open", path, err)
	}
	defer dir.Close()
	for {
		entries, err := dir.ReadDir(directoryBatch)
		for _, e := range entries {
			if !visit(dir, e) {
				return nil
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return pathError("read", path, err)
		}
	}
}

// noMode is the mode of what cannot be looked at: neither file nor directory.
const noMode = fs.ModeIrregular

func join(dir, name string) string {
	if dir == string(filepath.Separator) {
		return dir + name
	}
	return dir + string(filepath.Separator) + name
}
