package filesystem

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// DirEntry is one name in a directory. The two kinds describe a link's target, as in
// [Metadata]. Neither is set for a dangling link, or if the server may not examine the
// target.
type DirEntry struct {
	Name        string // raw bytes, not necessarily UTF-8
	IsDirectory bool
	IsFile      bool
	IsSymlink   bool

	// Itself describes the entry itself, even if it is a link. It is nil if the caller did
	// not ask for details, or if the entry cannot be examined.
	Itself *Metadata
}

// directoryBatch is how many entries are read between two checks of the context.
const directoryBatch = 1024

// ReadDirectory calls visit for every entry of a directory, in the system's order, until
// visit returns false. With details it sets Itself. It follows a link to a directory. Its
// memory does not depend on the size of the directory.
func ReadDirectory(ctx context.Context, path string, details bool, visit func(DirEntry) bool) error {
	return eachEntry(ctx, path, func(dir *os.File, e fs.DirEntry) bool {
		if details && ctx.Err() != nil {
			return false // eachEntry reports it
		}
		return visit(entryOf(dir, path, e, details))
	})
}

// ReadPage calls visit for the entries of a directory whose names sort after a given name,
// in the order of their names, until visit returns false. With details it sets Itself. It
// reports whether there are more entries. A name that exists throughout appears in exactly
// one page, even if the directory changes between pages.
func ReadPage(ctx context.Context, path, after string, details bool, visit func(DirEntry) bool) (more bool, err error) {
	dir, err := openToList(ctx, path)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	page := page{after: after}
	if err := eachEntryOf(ctx, dir, path, page.add); err != nil {
		return false, err
	}
	page.cut()
	for _, e := range page.entries {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		if !visit(entryOf(dir, path, e, details)) {
			return true, nil
		}
	}
	return page.full, nil
}

// pageEntries is the maximum number of entries of a page. ReadPage reads the whole directory
// for each page, and holds up to twice as many names.
const pageEntries = 16384

// page collects the entries with the lowest names after one.
type page struct {
	after   string
	entries []fs.DirEntry
	full    bool // the directory has more entries after these
}

// add adds an entry, unless it comes later than a whole page.
func (p *page) add(e fs.DirEntry) bool {
	switch name := e.Name(); {
	case name <= p.after:
	case p.full && name >= p.entries[pageEntries-1].Name():
	default:
		if p.entries = append(p.entries, e); len(p.entries) == 2*pageEntries {
			p.cut()
		}
	}
	return true
}

// cut sorts the entries, and drops those beyond a page.
func (p *page) cut() {
	slices.SortFunc(p.entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	// A directory that changes while it is read may have shown a name twice.
	p.entries = slices.CompactFunc(p.entries, func(a, b fs.DirEntry) bool { return a.Name() == b.Name() })
	if len(p.entries) > pageEntries {
		clear(p.entries[pageEntries:])
		p.entries, p.full = p.entries[:pageEntries], true
	}
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
