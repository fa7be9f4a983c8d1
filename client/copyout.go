package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"execserver/protocol"
)

// CopyOut copies a file or a directory with everything in it from the machine of the FS to
// this machine. It is the counterpart of [FS.CopyIn], and does everything said there in the
// other direction. The copy is called localPath, whose parent must exist.
//
// Whatever the server answers, CopyOut writes nothing outside of localPath: it makes links
// as they are on the machine, but writes through none.
//
// With servers without the capability fsMetadata (PROTOCOL.md), modes and times do not come
// along, each file is copied again, links to directories fail with an *UnsupportedError,
// and the targets of other links are copied.
func (f *FS) CopyOut(name, localPath string, opts *CopyOptions) error {
	const op = "copy"
	source, err := f.osPath(op, name)
	if err != nil {
		return err
	}
	c := &copyOut{copying: f.newCopying(opts), far: source}
	entry, err := c.at(source, false)
	if err != nil {
		return c.finish(op, source, err)
	}
	if !c.details && entry.kind == protocol.KindSymlink { // the root is followed
		entry.kind = protocol.KindDirectory
	}
	switch entry.kind {
	case protocol.KindDirectory:
		err = c.tree(localPath, entry)
	case protocol.KindFile:
		err = c.single(localPath, entry)
	default:
		err = ErrSpecialFile
	}
	return c.finish(op, source, err)
}

// copyOut is a copy from the far machine.
type copyOut struct {
	*copying
	far   string // as the caller names it, but absolute
	root  *os.Root
	files chan outFile

	mu      sync.Mutex
	changed *sync.Cond
	waiting []*outDir // directories that are to be listed
	listing int       // that are being listed
}

// outDir is a directory that is being copied.
type outDir struct {
	parent  *outDir
	name    string // below the root of the copy
	far     string
	entry   *farEntry
	depth   int
	pending atomic.Int64 // what is not copied yet, and the directory itself
	there   bool         // it existed
	skipped bool         // it cannot be copied

	once  sync.Once
	parts []string // what earlier copies left here
}

// outFile is a file that is to be copied.
type outFile struct {
	dir   *outDir
	name  string // in its directory here
	far   string
	entry *farEntry
}

func (f *outFile) local() string { return filepath.Join(f.dir.name, f.name) }

// maxWaiting bounds the directories that wait to be listed.
const maxWaiting = 1 << 20

// tree copies a directory.
func (c *copyOut) tree(local string, entry *farEntry) (err error) {
	there := false
	switch err := os.Mkdir(local, 0o777); {
	case errors.Is(err, fs.ErrExist):
		there = true
	case err != nil:
		return err
	}
	if c.root, err = os.OpenRoot(local); err != nil {
		return err
	}
	defer c.root.Close()
	defer c.requests.Wait()
	c.changed = sync.NewCond(&c.mu)
	stop := context.AfterFunc(c.ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed.Broadcast()
	})
	defer stop()
	c.files = make(chan outFile, copyAhead)
	root := &outDir{name: ".", far: c.far, entry: entry, there: there}
	root.pending.Store(1)
	c.waiting = []*outDir{root}
	var listers sync.WaitGroup
	for range listings {
		listers.Go(c.listAll)
	}
	c.requests.Go(func() {
		listers.Wait()
		c.complete()
		close(c.files)
	})
	for f := range c.files {
		if err == nil {
			if err = c.file(f); err != nil {
				c.cancel(err)
			}
		}
	}
	return err
}

// listAll lists directories until there are no more.
func (c *copyOut) listAll() {
	for {
		d := c.next()
		if d == nil {
			return
		}
		c.directory(d)
		c.mu.Lock()
		c.listing--
		c.changed.Broadcast()
		c.mu.Unlock()
	}
}

// next returns a directory that is to be listed, the latest first, so that few wait.
func (c *copyOut) next() *outDir {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.waiting) == 0 && c.listing > 0 && c.ctx.Err() == nil {
		c.changed.Wait()
	}
	if len(c.waiting) == 0 || c.ctx.Err() != nil {
		return nil
	}
	last := len(c.waiting) - 1
	d := c.waiting[last]
	c.waiting[last] = nil
	c.waiting = c.waiting[:last]
	c.listing++
	return d
}

// directory makes a directory, and finds what is to be in it.
func (c *copyOut) directory(d *outDir) {
	defer c.release(d)
	if err := c.makeDirectory(d); err != nil {
		d.skipped = true
		c.failed(d.far, err)
		return
	}
	params := c.link.listing(d.far, c.details)
	for page := &params; page != nil; {
		entries, next, err := c.listed(*page)
		if err != nil {
			c.failed(d.far, err) // what is listed nevertheless is copied
		}
		if !c.passAll(d, entries) {
			return
		}
		page = next
	}
}

// passAll passes on what a listing has, and reports whether the copy goes on.
func (c *copyOut) passAll(d *outDir, entries []protocol.DirectoryEntry) bool {
	for some := range slices.Chunk(entries, statsAhead) {
		files := make([]outFile, 0, len(some))
		for _, e := range some {
			if !mayName(e.FileName) {
				c.failed(d.far, fmt.Errorf("the server lists a file of the name %q, which is none", e.FileName))
				continue
			}
			files = append(files, outFile{d, e.FileName, c.joinFar(d.far, e.FileName), entryOf(e)})
		}
		if !c.details {
			c.describe(files)
		}
		for _, f := range files {
			if !c.pass(f) {
				return false
			}
		}
	}
	return true
}

// statsAhead is how many files of a directory are described at a time.
const statsAhead = 64

// describe asks about files of a listing that does not tell links from what they lead to,
// and has no sizes. The entry of those that cannot be copied becomes nil.
func (c *copyOut) describe(files []outFile) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range files {
		wg.Go(func() {
			f := &files[i]
			entry, err := c.at(f.far, true)
			if err == nil && entry.kind == protocol.KindSymlink && !c.details {
				err = &UnsupportedError{"copy a link to a directory", capMetadata}
			}
			if f.entry = entry; err != nil {
				f.entry = nil
				c.failed(f.far, err)
			}
		})
	}
}

// makeDirectory makes a directory here, if it is not there.
func (c *copyOut) makeDirectory(d *outDir) error {
	if d.parent == nil {
		return nil
	}
	mode := fs.FileMode(0o777)
	if c.modes {
		mode = 0o700 // until everything is in it
	}
	err := c.root.Mkdir(d.name, mode)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	d.there = true
	info, err := c.root.Lstat(d.name)
	if err == nil && !info.IsDir() {
		err = errThere(syscall.ENOTDIR)
	}
	return err
}

// pass passes on what a directory contains, and reports whether the copy goes on.
func (c *copyOut) pass(f outFile) bool {
	if f.entry == nil {
		return c.ctx.Err() == nil
	}
	if !c.wants(f.local(), f.entry.kind == protocol.KindDirectory) {
		return true
	}
	switch f.entry.kind {
	case protocol.KindDirectory:
		c.wait(&outDir{parent: f.dir, name: f.local(), far: f.far, entry: f.entry, depth: f.dir.depth + 1})
		return true
	case protocol.KindFile, protocol.KindSymlink:
		c.found(f.entry.size)
	default:
		c.leftOut(f.far)
		return true
	}
	f.dir.pending.Add(1)
	select {
	case c.files <- f:
		return true
	case <-c.ctx.Done():
		return false
	}
}

// wait puts a directory among those that are to be listed.
func (c *copyOut) wait(d *outDir) {
	if d.depth > maxCopyDepth {
		c.failed(d.far, errTooDeep)
		return
	}
	c.mu.Lock()
	full := len(c.waiting) >= maxWaiting
	if !full {
		d.pending.Store(1)
		d.parent.pending.Add(1)
		c.waiting = append(c.waiting, d)
		c.changed.Signal()
	}
	c.mu.Unlock()
	if full {
		c.failed(d.far, fmt.Errorf("more than %d directories wait to be copied; copy them one by one", maxWaiting))
	}
}

// release records that something in a directory is copied, or the directory itself. After
// the last of them, the directory gets its mode and its time.
func (c *copyOut) release(d *outDir) {
	for ; d != nil && d.pending.Add(-1) == 0; d = d.parent {
		if d.skipped || !c.details || c.ctx.Err() != nil {
			continue
		}
		var err error
		if c.modes {
			err = c.root.Chmod(d.name, d.entry.perm(0o700))
		}
		if err == nil {
			err = c.root.Chtimes(d.name, d.entry.modified, d.entry.modified)
		}
		if err != nil {
			c.failed(d.far, err)
		}
	}
}

// file copies a file or a link of a tree. It returns when the file is on its way.
func (c *copyOut) file(f outFile) error {
	if f.entry.kind == protocol.KindSymlink {
		if err := c.symlink(f); err != nil {
			c.failed(f.far, err)
		}
		c.release(f.dir)
		return nil
	}
	return c.copyFile(f)
}

// symlink makes a link as it is on the machine.
func (c *copyOut) symlink(f outFile) error {
	text, name := f.entry.target, f.local()
	if text == "" || strings.ContainsRune(text, 0) {
		return fmt.Errorf("the server describes a link to %q, which is impossible", text)
	}
	there, err := c.root.Lstat(name)
	switch {
	case err == nil && there.Mode().Type() == fs.ModeSymlink:
		if old, err := c.root.Readlink(name); err == nil && old == text {
			c.unchanged(f.entry.size)
			return nil
		}
		err = c.root.Remove(name)
	case err == nil:
		if err = inTheWay(there); err == nil {
			err = c.root.Remove(name)
		}
	case isNotExist(err):
		err = nil
	}
	if err == nil {
		err = c.root.Symlink(text, name)
	}
	if err == nil {
		c.copied(f.far, f.entry.size)
	}
	return err
}
