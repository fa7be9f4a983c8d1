package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
)

// copySide is one of the two trees of a copy: localSide or remoteSide. Names are relative to the
// root and have slashes; "." is the root, which may be a file. Methods may be called concurrently.
type copySide interface {
	// path returns the path of a name, for people.
	path(name string) string
	// list yields the entries of a directory in the order of their names. An error that comes
	// with an entry concerns that entry alone.
	list(dir string) iter.Seq2[*copyEntry, error]
	mkdir(name string, mode fs.FileMode) error
	// symlink makes a link. It replaces a file or link if old is not nil.
	symlink(e, old *copyEntry) error
	// change sets the mode and the time of a file, unless they are nil.
	change(name string, mode *fs.FileMode, modified *time.Time) error
	// readAll returns the content of a small file, and updates e.
	readAll(e *copyEntry) ([]byte, error)
	// writeAll writes a small file like create and commit.
	writeAll(data []byte, t *copyTarget) error
	// open opens a file to read it, and updates e.
	open(e *copyEntry) (blocks, error)
	// create begins to write a file.
	create(t *copyTarget) (copyWriter, error)
}

// copyEntry describes a file of either side.
type copyEntry struct {
	name     string      // relative to the root, with slashes; "." is the root
	mode     fs.FileMode // type and permissions
	size     int64
	modified time.Time
	target   string // of a symbolic link
	details  bool   // permissions and time are known
}

func (e *copyEntry) isLink() bool { return e != nil && e.mode.Type() == fs.ModeSymlink }

// infoEntry describes a file of this machine.
func infoEntry(name string, info fs.FileInfo) *copyEntry {
	return &copyEntry{name: name, mode: info.Mode(), size: info.Size(), modified: info.ModTime(), details: true}
}

// joinName returns the name of an entry of a directory.
func joinName(dir, name string) string {
	if dir == "." {
		return name
	}
	return dir + "/" + name
}

// copyTarget describes a file to write.
type copyTarget struct {
	name     string
	size     int64
	mode     *fs.FileMode // permissions; nil keeps those of an existing file
	modified *time.Time   // nil for the time of the copy
	old      *copyEntry   // the file or link that has the name, or nil
}

// inPlace reports whether an existing file is written.
func (t *copyTarget) inPlace() bool { return t.old != nil && !t.old.isLink() }

// copyWriter writes a file: a new one under a hidden name, an existing one in place.
type copyWriter interface {
	// writeBlock may be called concurrently.
	writeBlock(ctx context.Context, offset int64, block []byte) error
	// commit gives the file its size, mode, time and name, and closes it.
	commit() error
	// abandon closes the file, and removes it if its name is hidden. It reports whether an
	// incomplete file remains. The context of the copy may have ended.
	abandon() (incomplete bool)
}

// Bounds of a copy.
const (
	// smallFile is the size of the largest file that one request copies, and the block size
	// of larger files.
	smallFile = 256 << 10
	// smallFiles and largeFiles bound the files copied concurrently, and largeBlocks the
	// concurrent blocks of a large file.
	smallFiles  = 128
	largeFiles  = 16
	largeBlocks = 16
	// directories bounds the directories listed concurrently.
	directories = 16
	// maxContent bounds the content in memory and in blocks.
	maxContent = 4 << 20
	// maxCopyDepth bounds the depth of a tree. A tree without end is deeper.
	maxCopyDepth = 256
	// maxCopyProblems bounds CopyError.Problems.
	maxCopyProblems = 16
	// defaultCleanupTime bounds the cleanup of an interrupted copy.
	defaultCleanupTime = 2 * time.Second
	// progressInterval is the time between two calls of CopyOptions.Progress.
	progressInterval = 100 * time.Millisecond
)

// copying is one copy. It lists both sides of each directory, and copies the differences.
type copying struct {
	env      *Environment
	ctx      context.Context // canceled by an error that concerns all files
	cancel   context.CancelCauseFunc
	opts     CopyOptions
	details  bool // the server knows modes, times and links
	modes    bool // both systems have permission bits
	from, to copySide

	dirs, small, large errgroup.Group
	content            *semaphore.Weighted

	mu         sync.Mutex
	progress   CopyProgress
	reported   time.Time
	problems   []*fs.PathError
	incomplete *fs.PathError // the first incomplete file

	calling sync.Mutex // held while a function of opts runs
}

// newCopying begins a copy. The caller must call finish.
func (f *FS) newCopying(opts *CopyOptions) *copying {
	c := &copying{env: f.env, details: f.env.has(capMetadata), content: semaphore.NewWeighted(maxContent)}
	c.modes = c.details && runtime.GOOS != "windows" && f.env.conns.machine.goos() != "windows"
	if opts != nil {
		c.opts = *opts
	}
	if c.opts.Progress == nil {
		c.opts.Progress = func(CopyProgress) {}
	}
	if c.opts.Problem == nil {
		c.opts.Problem = func(*fs.PathError) {}
	}
	c.ctx, c.cancel = context.WithCancelCause(f.ctx)
	c.dirs.SetLimit(directories)
	c.small.SetLimit(smallFiles)
	c.large.SetLimit(largeFiles)
	return c
}

// run copies the root. old is the target, or nil if it does not exist.
func (c *copying) run(e, old *copyEntry) error {
	if !e.mode.IsDir() && !e.mode.IsRegular() {
		return ErrSpecialFile
	}
	root := &copyDir{entry: e, old: old}
	if e.mode.IsDir() {
		c.directory(root)
	} else {
		root.pending.Store(2) // never reaches zero: the directory of the file is not copied
		c.file(root, e, old)
	}
	_ = c.dirs.Wait()
	c.count(func(p *CopyProgress) { p.Complete = true })
	_ = c.small.Wait()
	_ = c.large.Wait()
	return nil
}

// copyDir is a directory that is being copied.
type copyDir struct {
	parent     *copyDir // nil for the root
	entry, old *copyEntry
	depth      int
	pending    atomic.Int64 // entries not yet copied, plus one for the directory itself
	failed     bool         // the target could not be made
}

// directory copies a directory.
func (c *copying) directory(d *copyDir) {
	d.pending.Add(1)
	defer c.release(d)
	if err := c.enter(d); err != nil {
		d.failed = true
		c.failed(d.entry.name, err)
		return
	}
	var below []*copyDir
	for pair, err := range c.pairs(d) {
		switch e := pair.entry; {
		case c.ctx.Err() != nil:
			return
		case err != nil && e != nil:
			c.failed(e.name, err)
		case err != nil:
			c.failed(d.entry.name, err)
		case e.mode.IsDir():
			below = append(below, &copyDir{parent: d, entry: e, old: pair.old, depth: d.depth + 1})
			d.pending.Add(1)
		case e.mode.IsRegular():
			c.file(d, e, pair.old)
		case e.isLink():
			c.link(d, e, pair.old)
		default:
			c.leftOut(e.name)
		}
	}
	for _, b := range below {
		visit := func() error { c.directory(b); return nil }
		if !c.dirs.TryGo(visit) {
			_ = visit()
		}
	}
}

// enter makes the target directory unless it exists.
func (c *copying) enter(d *copyDir) error {
	switch {
	case d.depth > maxCopyDepth:
		return errTooDeep
	case d.old != nil && !d.old.mode.IsDir():
		return &inUseError{syscall.ENOTDIR}
	case d.old != nil:
		return nil
	}
	return c.to.mkdir(d.entry.name, c.firstMode(d.entry))
}

// firstMode returns the mode of a new directory until it is complete.
func (c *copying) firstMode(e *copyEntry) fs.FileMode {
	if !c.modes {
		return 0o777
	}
	return e.mode.Perm() | 0o700
}

// release counts an entry of a directory as copied. After the last one, the directory gets its
// mode and time, and counts as an entry of its parent.
func (c *copying) release(d *copyDir) {
	for ; d != nil && d.pending.Add(-1) == 0; d = d.parent {
		if d.failed || !c.details || c.ctx.Err() != nil || d.old != nil && !c.opts.Modes {
			continue
		}
		if err := c.to.change(d.entry.name, c.mode(d.entry, nil), &d.entry.modified); err != nil {
			c.failed(d.entry.name, err)
		}
	}
}

// mode returns the permissions of a copy, or nil to keep those of old.
func (c *copying) mode(e, old *copyEntry) *fs.FileMode {
	if !c.modes || old != nil && !old.isLink() && !c.opts.Modes {
		return nil
	}
	return new(e.mode.Perm())
}

// copyPair is an entry of a directory, and the entry of that name at the target, or nil.
type copyPair struct{ entry, old *copyEntry }

// pairs lists both sides of a directory in the order of names, so it holds at most a page of
// each.
func (c *copying) pairs(d *copyDir) iter.Seq2[copyPair, error] {
	return func(yield func(copyPair, error) bool) {
		next, stop := func() (*copyEntry, error, bool) { return nil, nil, false }, func() {}
		if d.old != nil {
			next, stop = iter.Pull2(c.to.list(d.entry.name))
		}
		defer stop()
		old, oldErr, more := next()
		for e, err := range c.from.list(d.entry.name) {
			for err == nil && more && oldErr == nil && old.name < e.name {
				old, oldErr, more = next()
			}
			switch {
			case err != nil:
			case more && errors.Is(oldErr, ErrTruncated):
				more = false // the server lists only a part: copy the rest as if it were new
			case more && oldErr != nil:
				yield(copyPair{}, oldErr)
				return
			case more && old.name == e.name:
				if !yield(copyPair{e, old}, nil) {
					return
				}
				continue
			}
			if !yield(copyPair{entry: e}, err) {
				return
			}
		}
	}
}

// link copies a symbolic link.
func (c *copying) link(d *copyDir, e, old *copyEntry) {
	if old.isLink() && old.target == e.target {
		c.count(func(p *CopyProgress) { p.Unchanged++ })
		return
	}
	c.begin(&c.small, d, e.name, func() error {
		if err := old.inTheWay(); err != nil {
			return err
		}
		if err := c.to.symlink(e, old); err != nil {
			return err
		}
		c.copied(e.name, 0)
		return nil
	})
}

// begin runs work for an entry of a directory once the group has room.
func (c *copying) begin(group *errgroup.Group, d *copyDir, name string, work func() error) {
	d.pending.Add(1)
	group.Go(func() error {
		defer c.release(d)
		if c.ctx.Err() == nil {
			c.failed(name, work())
		}
		return nil
	})
}

// inTheWay returns an error if the target has something that a copy must not replace: anything
// but a file or a link. e may be nil.
func (e *copyEntry) inTheWay() error {
	switch {
	case e == nil, e.mode.IsRegular(), e.isLink():
		return nil
	case e.mode.IsDir():
		return &inUseError{syscall.EISDIR}
	}
	return &inUseError{ErrSpecialFile}
}

// file copies a file unless the target has the same size and time.
func (c *copying) file(d *copyDir, e, old *copyEntry) {
	if old != nil && old.mode.IsRegular() && old.details && e.details && old.size == e.size && sameTime(old.modified, e.modified) {
		c.count(func(p *CopyProgress) { p.Unchanged++ })
		if mode := c.mode(e, old); mode != nil && *mode != old.mode.Perm() {
			c.begin(&c.small, d, e.name, func() error { return c.to.change(e.name, mode, nil) })
		}
		return
	}
	c.count(func(p *CopyProgress) { p.TotalBytes += e.size })
	group, work := &c.small, c.oneRequest
	if e.size > smallFile {
		group, work = &c.large, c.inBlocks
	}
	c.begin(group, d, e.name, func() error {
		if err := old.inTheWay(); err != nil {
			return err
		}
		return work(e, old)
	})
}

// sameTime compares two times at the precision that all file systems keep.
func sameTime(a, b time.Time) bool {
	return a.Truncate(time.Microsecond).Equal(b.Truncate(time.Microsecond))
}

// target describes the copy of a file that has been opened.
func (c *copying) target(e, old *copyEntry) *copyTarget {
	t := &copyTarget{name: e.name, size: e.size, mode: c.mode(e, old), old: old}
	if c.details {
		t.modified = &e.modified
	}
	return t
}

// oneRequest copies a small file.
func (c *copying) oneRequest(e, old *copyEntry) error {
	size := e.size
	if err := c.content.Acquire(c.ctx, size); err != nil {
		return err
	}
	defer c.content.Release(size)
	data, err := c.from.readAll(e)
	if err != nil {
		return err
	}
	if err := c.to.writeAll(data, c.target(e, old)); err != nil {
		return err
	}
	c.copied(e.name, int64(len(data)))
	return nil
}

// inBlocks copies a large file.
func (c *copying) inBlocks(e, old *copyEntry) error {
	source, err := c.from.open(e)
	if err != nil {
		return err
	}
	defer c.cleanup(func(ctx context.Context) { _ = source.close(ctx) })
	for {
		err := c.copyBlocks(source, e, old)
		// If the server cannot reopen a file for writing, start from the beginning.
		if !errors.As(err, new(*InterruptedError)) || c.env.Err() != nil {
			return err
		}
	}
}

// copyBlocks copies an open file.
func (c *copying) copyBlocks(source blocks, e, old *copyEntry) error {
	target, err := c.to.create(c.target(e, old))
	if err != nil {
		return err
	}
	var moved atomic.Int64
	blocks, ctx := errgroup.WithContext(c.ctx)
	blocks.SetLimit(largeBlocks)
	for offset := int64(0); offset < e.size; offset += smallFile {
		n := min(smallFile, e.size-offset)
		if c.content.Acquire(ctx, n) != nil {
			break
		}
		blocks.Go(func() error {
			defer c.content.Release(n)
			data, _, err := source.readBlock(ctx, offset, int(n))
			if err == nil && int64(len(data)) < n {
				err = errShrunk
			}
			if err != nil {
				return err
			}
			if err := target.writeBlock(ctx, offset, data); err != nil {
				return err
			}
			moved.Add(n)
			c.count(func(p *CopyProgress) { p.Bytes += n; p.Name = c.from.path(e.name) })
			return nil
		})
	}
	if err = blocks.Wait(); err == nil && c.ctx.Err() != nil {
		err = context.Cause(c.ctx)
	}
	if err == nil {
		err = target.commit()
	}
	if err != nil {
		c.count(func(p *CopyProgress) { p.Bytes -= moved.Load() })
		if target.abandon() {
			err = &incompleteError{err}
		}
		return err
	}
	c.copied(e.name, 0)
	return nil
}

// cleanup makes requests even if the context of the copy has ended.
func (c *copying) cleanup(run func(context.Context)) {
	ctx, cancel := context.WithTimeout(withoutFailFast(context.WithoutCancel(c.ctx)), cmp.Or(c.env.opts.cleanupTime, defaultCleanupTime))
	defer cancel()
	run(ctx)
}

// hiddenName returns a new name for an incomplete file.
func hiddenName() string {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return fmt.Sprintf(".exec-server-%s.part", hex.EncodeToString(random[:]))
}
