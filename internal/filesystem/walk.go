package filesystem

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The largest limits of a walk.
const (
	MaxWalkDepth       = 64
	MaxWalkDirectories = 10_000
	MaxWalkEntries     = 50_000
)

// WalkOptions bound a walk.
type WalkOptions struct {
	// MaxDepth is how far below the root a directory may be to be read. 0 lists only the
	// entries of the root.
	MaxDepth int
	// MaxDirectories is how many directories are read, with the root.
	MaxDirectories int
	// MaxEntries is how many names are examined, listed or not.
	MaxEntries int
	// MaxPathBytes is how many bytes the paths of entries and errors may have together. 0
	// means no limit.
	MaxPathBytes int
	// Fits, if not nil, is called before an entry or error is added to the result, with
	// the number of entries and errors and the bytes of their paths after that. If it
	// returns false, the result is truncated.
	Fits func(count, pathBytes int) bool

	// FollowDirectorySymlinks enters links to directories, each real directory once.
	// Without it, such links are not listed.
	FollowDirectorySymlinks bool
	// StayInside does not list links to directories outside of the root; each is an
	// [OutsideError] in the result. Links can change during the walk, so read the files
	// through a [Tree].
	StayInside bool
	// PruneHiddenDirectories lists directories whose names start with a dot, but does not
	// enter them.
	PruneHiddenDirectories bool
}

// WalkEntry is a regular file or a directory below the root of a walk.
type WalkEntry struct {
	Path        string // raw bytes, not necessarily UTF-8
	IsDirectory bool
}

// WalkError is a directory that could not be read.
type WalkError struct {
	Path string
	Err  error
}

// WalkResult is the result of a walk.
type WalkResult struct {
	Entries   []WalkEntry
	Errors    []WalkError
	Truncated bool // a limit on directories, entries or bytes left something out
}

// Walk lists the files and directories below root level by level, and each directory in
// the byte order of its names. It does not list special files and links to files. If root
// is not a directory, or is a link that must not be followed, the result is empty. A
// missing root is an error.
//
// The limits bound its memory, whatever the size of the directories.
func Walk(ctx context.Context, root string, options WalkOptions) (WalkResult, error) {
	if err := options.check(); err != nil {
		return WalkResult{}, err
	}
	if ctx.Err() != nil {
		return WalkResult{}, context.Cause(ctx)
	}
	if err := checkPath(root); err != nil {
		return WalkResult{}, err
	}
	target, err := os.Stat(root)
	if err != nil {
		return WalkResult{}, pathError("walk", root, err)
	}
	if !target.IsDir() {
		return WalkResult{}, nil
	}
	if info, err := os.Lstat(root); err == nil && isLink(info.Mode()) && !options.FollowDirectorySymlinks {
		return WalkResult{}, nil
	}
	w := walker{options: options, seen: map[any]bool{}}
	if options.StayInside {
		if w.real, err = filepath.EvalSymlinks(root); err != nil {
			return WalkResult{}, pathError("walk", root, err)
		}
	}
	w.enqueue(root, 0)
	for len(w.queue) > 0 && !w.result.Truncated {
		if err := w.next(ctx); err != nil {
			return WalkResult{}, err
		}
	}
	return w.result, nil
}

func (o WalkOptions) check() error {
	if o.MaxDirectories <= 0 || o.MaxEntries <= 0 || o.MaxDepth < 0 {
		return &Refusal{"filesystem walk limits must be greater than zero"}
	}
	if o.MaxDepth > MaxWalkDepth || o.MaxDirectories > MaxWalkDirectories || o.MaxEntries > MaxWalkEntries {
		return &Refusal{fmt.Sprintf("filesystem walk limits exceed maximums: depth=%d, directories=%d, entries=%d",
			MaxWalkDepth, MaxWalkDirectories, MaxWalkEntries)}
	}
	return nil
}

type walker struct {
	options     WalkOptions
	real        string // the root without links, for StayInside
	result      WalkResult
	queue       []walkDirectory
	seen        map[any]bool // real directories entered or to be entered
	directories int
	examined    int // entries examined
	pathBytes   int // of the result
}

type walkDirectory struct {
	path  string
	depth int
}

func (w *walker) enqueue(path string, depth int) {
	if depth > w.options.MaxDepth {
		return
	}
	if w.options.FollowDirectorySymlinks { // otherwise each directory has only one path
		if id, ok := fileID(path); ok {
			if w.seen[id] {
				return
			}
			w.seen[id] = true
		}
	}
	w.queue = append(w.queue, walkDirectory{path, depth})
}

// next reads one directory.
func (w *walker) next(ctx context.Context) error {
	dir := w.queue[0]
	w.queue = w.queue[1:]
	if w.directories == w.options.MaxDirectories {
		w.result.Truncated = true
		return nil
	}
	w.directories++
	entries, more, err := readSorted(ctx, dir.path, w.options.MaxEntries-w.examined)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		if w.fits(dir.path) {
			w.result.Errors = append(w.result.Errors, WalkError{dir.path, err})
		}
		return nil
	}
	for i, e := range entries {
		if i%directoryBatch == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		w.examined++
		if w.visit(dir, e); w.result.Truncated {
			return nil
		}
	}
	w.result.Truncated = more
	return nil
}

// fits reports whether another path fits into the result. If not, it marks the result as
// truncated.
func (w *walker) fits(path string) bool {
	if limit := w.options.MaxPathBytes; limit > 0 && w.pathBytes+len(path) > limit {
		w.result.Truncated = true
		return false
	}
	count := len(w.result.Entries) + len(w.result.Errors) + 1
	if w.options.Fits != nil && !w.options.Fits(count, w.pathBytes+len(path)) {
		w.result.Truncated = true
		return false
	}
	w.pathBytes += len(path)
	return true
}

func (w *walker) visit(dir walkDirectory, e fs.DirEntry) {
	path := join(dir.path, e.Name())
	mode := e.Type()
	if isLink(mode) {
		info, err := os.Stat(path)
		if err != nil || !info.IsDir() || !w.options.FollowDirectorySymlinks {
			return
		}
		if w.escapes(path) {
			if w.fits(path) {
				w.result.Errors = append(w.result.Errors, WalkError{path, &OutsideError{}})
			}
			return
		}
		mode = info.Mode().Type()
	}
	switch {
	case !mode.IsRegular() && !mode.IsDir(), !w.fits(path):
	case mode.IsRegular():
		w.result.Entries = append(w.result.Entries, WalkEntry{Path: path})
	default:
		w.result.Entries = append(w.result.Entries, WalkEntry{Path: path, IsDirectory: true})
		if !w.options.PruneHiddenDirectories || !strings.HasPrefix(e.Name(), ".") {
			w.enqueue(path, dir.depth+1)
		}
	}
}

// escapes reports whether a link leads out of the root.
func (w *walker) escapes(link string) bool {
	if !w.options.StayInside {
		return false
	}
	real, err := filepath.EvalSymlinks(link)
	return err != nil || !isInside(w.real, real)
}

// readSorted returns the first limit entries of a directory by name, and whether it has
// more. It never holds all entries.
func readSorted(ctx context.Context, path string, limit int) (entries []fs.DirEntry, more bool, err error) {
	cut := func() {
		slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
		if len(entries) > limit {
			clear(entries[limit:])
			entries, more = entries[:limit], true
		}
	}
	err = eachEntry(ctx, path, func(_ *os.File, e fs.DirEntry) bool {
		entries = append(entries, e)
		if len(entries) >= 2*limit+directoryBatch {
			cut()
		}
		return true
	})
	cut()
	return entries, more, err
}
