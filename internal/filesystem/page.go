package filesystem

import (
	"context"
	"io/fs"
	"slices"
	"strings"
)

// pageEntries is how many entries ReadPage visits at most. It reads the whole directory for
// each page, and holds twice so many names.
const pageEntries = 16384

// ReadPage calls visit for entries of a directory in the order of their names, from the
// first after a name on, until visit returns false, with details if asked for. more says
// that there are others. A name that is there all the time is visited once by one page or
// another, however the directory changes between them.
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

// page collects the entries with the lowest names after one.
type page struct {
	after   string
	entries []fs.DirEntry
	full    bool // there are entries after the last of entries, when they were cut
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

// cut sorts the entries, and drops what is beyond a page.
func (p *page) cut() {
	slices.SortFunc(p.entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	// A directory that changes while it is read may have shown a name twice.
	p.entries = slices.CompactFunc(p.entries, func(a, b fs.DirEntry) bool { return a.Name() == b.Name() })
	if len(p.entries) > pageEntries {
		clear(p.entries[pageEntries:])
		p.entries, p.full = p.entries[:pageEntries], true
	}
}
