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

// ReadDirectory lists a directory, in the order the system has it. It follows
// a link to a directory.
func ReadDirectory(ctx context.Context, path string) ([]DirEntry, error) {
	var list []DirEntry
	err := eachEntry(ctx, path, func(dir *os.File, e fs.DirEntry) {
		entry := DirEntry{Name: e.Name(), IsSymlink: e.Type()&fs.ModeSymlink != 0}
		mode := e.Type()
		if entry.IsSymlink {
			mode = targetMode(dir, path, e.Name())
		}
		entry.IsDirectory, entry.IsFile = mode.IsDir(), mode.IsRegular()
		list = append(list, entry)
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// eachEntry calls visit for every entry of a directory, holding no more than a
// batch of them.
func eachEntry(ctx context.Context, path string, visit func(dir *os.File, e fs.DirEntry)) error {
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
			visit(dir, e)
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
