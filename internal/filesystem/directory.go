package filesystem

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// DirEntry is one name in a directory. The two kinds describe a link's target, as in
// [Metadata]. Neither is set for a link that leads nowhere or to a place that the server
// may not examine.
type DirEntry struct {
	Name        string // raw bytes, not necessarily UTF-8
	IsDirectory bool
	IsFile      bool
	IsSymlink   bool

	// Itself describes the entry itself, also a link. It is nil if nobody asked for it, or
	// if the entry cannot be examined.
	Itself *Metadata
}

// directoryBatch is how many entries are read between two checks of the context.
const directoryBatch = 1024

// ReadDirectory calls visit for every entry of a directory, in the system's order, until
// visit returns false, with details if asked for. It follows a link to a directory. The
// memory that it uses does not depend on the size of the directory.
func ReadDirectory(ctx context.Context, path string, details bool, visit func(DirEntry) bool) error {
	return eachEntry(ctx, path, func(dir *os.File, e fs.DirEntry) bool {
		if details && ctx.Err() != nil {
			return false // eachEntry reports it
		}
		return visit(entryOf(dir, path, e, details))
	})
}

// entryOf describes an entry of an open directory.
func entryOf(dir *os.File, path string, e fs.DirEntry, details bool) DirEntry {
	entry := DirEntry{Name: e.Name(), IsSymlink: e.Type()&fs.ModeSymlink != 0}
	mode := e.Type()
	if entry.IsSymlink {
		mode = targetMode(dir, path, e.Name())
	}
	entry.IsDirectory, entry.IsFile = mode.IsDir(), mode.IsRegular()
	if details {
		entry.Itself = examine(dir, path, e.Name())
	}
	return entry
}

// eachEntry calls visit for the entries of a directory until visit returns false. It
// holds no more than a batch of them.
func eachEntry(ctx context.Context, path string, visit func(dir *os.File, e fs.DirEntry) bool) error {
	dir, err := openToList(ctx, path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return eachEntryOf(ctx, dir, path, func(e fs.DirEntry) bool { return visit(dir, e) })
}

// openToList opens a directory. The caller must close it.
func openToList(ctx context.Context, path string) (*os.File, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := checkPath(path); err != nil {
		return nil, err
	}
	dir, err := openDirectory(path)
	if err != nil {
		return nil, pathError("open", path, err)
	}
	return dir, nil
}

// eachEntryOf is eachEntry for an open directory.
func eachEntryOf(ctx context.Context, dir *os.File, path string, visit func(fs.DirEntry) bool) error {
	for {
		entries, err := dir.ReadDir(directoryBatch)
		for _, e := range entries {
			if !visit(e) {
				return context.Cause(ctx)
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

// noMode is the mode of an entry that cannot be examined: neither file nor directory.
const noMode = fs.ModeIrregular

func join(dir, name string) string {
	if dir == string(filepath.Separator) {
		return dir + name
	}
	return dir + string(filepath.Separator) + name
}
