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
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
)

// copySide is one of the two trees of a copy: on this machine, or on the server's. Names are
// relative to its root and have slashes; "." is the root, which may be a file. Methods may be
// called concurrently.
type copySide interface {
	// path returns what a person calls a name.
	path(name string) string
	// list yields the entries of a directory in the order of their names. An error with an
	// entry concerns only that entry.
	list(dir string) iter.Seq2[*copyEntry, error]
	mkdir(name string, mode fs.FileMode) error
	// symlink makes a link. It replaces a file or link if old is not nil.
	symlink(e, old *copyEntry) error
	// change sets the mode and the time of a file, unless they are nil.
	change(name string, mode *fs.FileMode, modified *time.Time) error
	// readAll returns the content of a small file, and makes e describe it.
	readAll(e *copyEntry) ([]byte, error)
	// writeAll writes a small file like create and commit.
	writeAll(data []byte, t *copyTarget) error
	// open opens a file to read it, and makes e describe it.
	open(e *copyEntry) (blocks, error)
	// create begins to write a file.
	create(t *copyTarget) (copyWriter, error)
}

// copyTarget describes a file that is to be written.
type copyTarget struct {
	name     string
	size     int64
	mode     *fs.FileMode // permissions; nil keeps those of an existing file
	modified *time.Time   // nil means the time of the copy
	old      *copyEntry   // the file or link that has the name
}

// inPlace reports whether an existing file is written.
func (t *copyTarget) inPlace() bool { return t.old != nil && !t.old.isLink() }

// copyWriter is a file that is being written. A new file has a hidden name, and an existing
// one is written in place.
type copyWriter interface {
	// writeBlock may be called concurrently.
	writeBlock(ctx context.Context, offset int64, block []byte) error
	// commit gives the file its size, mode, time and name, and closes it.
	commit() error
	// abandon closes the file, and removes it if it has a hidden name. It reports whether
	// the target has an incomplete file. The context of the copy may have ended.
	abandon() (incomplete bool)
}

// Bounds of a copy.
const (
	// smallFile is the size of the largest file that is copied by one request, and of the
	// blocks of larger ones.
	smallFile = 256 << 10
	// smallFiles is how many small files are copied at a time, and largeFiles how many
	// larger ones, each with up to largeBlocks blocks.
	smallFiles  = 128
	largeFiles  = 16
	largeBlocks = 16
	// directories is how many directories are listed at a time.
	directories = 16
	// maxContent bounds the content that is in memory and under way.
	maxContent = 4 << 20
	// maxCopyDepth bounds a tree. Only one that has no end is deeper.
	maxCopyDepth = 256
	// maxCopyProblems bounds CopyError.Problems.
	maxCopyProblems = 16
	// defaultCleanupTime bounds what a copy does after its end.
	defaultCleanupTime = 2 * time.Second
	// progressInterval is the time between two calls of CopyOptions.Progress.
	progressInterval = 100 * time.Millisecond
)

// copying is one copy. It lists both sides of a directory, and copies what differs.
type copying struct {
	env      *Environment
	ctx      context.Context // ends with a failure that concerns everything
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
	incomplete *fs.PathError // the first file that is only partly written

	calling sync.Mutex // held while a function of opts runs
}

// newCopying begins a copy. The caller must call finish.
func (f *FS) newCopying(opts *CopyOptions) *copying {
	c := &copying{env: f.env, details: f.env.has(capMetadata), content: semaphore.NewWeighted(maxContent)}
	c.modes = c.details && runtime.GOOS != "windows" && f.env.link.machine.goos() != "windows"
	if opts != nil {
		c.opts = *opts
	}
	c.ctx, c.cancel = context.WithCancelCause(f.ctx)
	c.dirs.SetLimit(directories)
	c.small.SetLimit(smallFiles)
	c.large.SetLimit(largeFiles)
	return c
}

// run copies the roots of both sides. old is nil if there is nothing at the target.
func (c *copying) run(e, old *copyEntry) error {
	if !e.mode.IsDir() && !e.mode.IsRegular() {
		return ErrSpecialFile
	}
	root := &copyDir{entry: e, old: old}
	if e.mode.IsDir() {
		c.directory(root)
	} else {
		root.pending.Store(2) // never released: the directory of the file is not copied
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
	pending    atomic.Int64 // entries that are not copied yet, and the directory itself
	failed     bool         // it could not be made
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

// enter makes a directory at the target, unless it exists.
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

// firstMode returns the mode of a new directory until everything is in it.
func (c *copying) firstMode(e *copyEntry) fs.FileMode {
	if !c.modes {
		return 0o777
	}
	return e.mode.Perm() | 0o700
}

// release records that an entry of a directory is copied, or the directory itself. After
// the last of them, the directory gets its mode and its time.
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

// mode returns the permissions that a copy gets, or nil if it keeps those of old.
func (c *copying) mode(e, old *copyEntry) *fs.FileMode {
	if !c.modes || old != nil && !old.isLink() && !c.opts.Modes {
		return nil
	}
	return new(e.mode.Perm())
}

// copyPair is an entry of a directory, and what has its name at the target, if anything.
type copyPair struct{ entry, old *copyEntry }

// pairs lists both sides of a directory. Both list in the order of names, so it holds no
// more than a page of each.
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
				more = false // a server that cannot tell what it has
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

// begin runs work for an entry of a directory when there is room for it.
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

// inTheWay returns an error if an entry of the target is a directory, a device, a FIFO or a
// socket, which no copy replaces.
func (e *copyEntry) inTheWay() error {
	switch {
	case e == nil, e.mode.IsRegular(), e.isLink():
		return nil
	case e.mode.IsDir():
		return &inUseError{syscall.EISDIR}
	}
	return &inUseError{ErrSpecialFile}
}

// file copies a file, unless the target has the same.
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

// sameTime reports whether two times are the same, as far as all file systems keep them.
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
		// A server that cannot reopen a file to write it gets the file from its beginning.
		if !errors.As(err, new(*DisconnectedError)) || c.env.Err() != nil {
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
	flight, ctx := errgroup.WithContext(c.ctx)
	flight.SetLimit(largeBlocks)
	for offset := int64(0); offset < e.size; offset += smallFile {
		n := min(smallFile, e.size-offset)
		if c.content.Acquire(ctx, n) != nil {
			break
		}
		flight.Go(func() error {
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
	if err = flight.Wait(); err == nil && c.ctx.Err() != nil {
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

// finish returns how the copy ended.
func (c *copying) finish(op, name string, err error) error {
	if c.ctx.Err() != nil {
		err = context.Cause(c.ctx)
	}
	c.cancel(nil)
	c.mu.Lock()
	p, problems, incomplete := c.progress, c.problems, c.incomplete
	c.mu.Unlock()
	p.Name = ""
	c.call(func() { c.opts.Progress(p) }, c.opts.Progress != nil)
	switch {
	case err != nil && incomplete != nil:
		return incomplete
	case errors.As(err, new(*fs.PathError)):
		return err
	case err != nil:
		return &fs.PathError{Op: op, Path: name, Err: err}
	case p.Failed > 0:
		return &CopyError{Failed: p.Failed, Problems: problems}
	}
	return nil
}

// call calls a function of the options, if it is wanted.
func (c *copying) call(f func(), wanted bool) {
	if !wanted {
		return
	}
	c.calling.Lock()
	defer c.calling.Unlock()
	f()
}

// count changes the progress, and reports it from time to time.
func (c *copying) count(change func(*CopyProgress)) {
	c.mu.Lock()
	change(&c.progress)
	now := time.Now()
	due := c.opts.Progress != nil && now.Sub(c.reported) >= progressInterval
	if due {
		c.reported = now
	}
	p := c.progress
	c.mu.Unlock()
	c.call(func() { c.opts.Progress(p) }, due)
}

// copied counts a file of which n bytes were not counted yet.
func (c *copying) copied(name string, n int64) {
	c.count(func(p *CopyProgress) { p.Files++; p.Bytes += n; p.Name = c.from.path(name) })
}

// replaced counts a file that has taken the place of one that cannot be written.
func (c *copying) replaced() { c.count(func(p *CopyProgress) { p.Replaced++ }) }

// leftOut reports that something cannot be copied.
func (c *copying) leftOut(name string) {
	c.count(func(p *CopyProgress) { p.LeftOut++ })
	c.call(func() { c.opts.Problem(&fs.PathError{Op: "copy", Path: c.from.path(name), Err: ErrSpecialFile}) }, c.opts.Problem != nil)
}

// failed records why a file or directory could not be copied. The copy continues with the
// others, unless the cause concerns them, too. A nil error is not recorded.
func (c *copying) failed(name string, err error) {
	incomplete := errors.As(err, new(*incompleteError))
	if err == nil || c.ctx.Err() != nil && !incomplete {
		return // what ended the copy is the error, and this follows from it
	}
	problem := &fs.PathError{Op: "copy", Path: c.from.path(name), Err: withoutPath(err)}
	c.mu.Lock()
	if incomplete && c.incomplete == nil {
		c.incomplete = problem
	}
	c.mu.Unlock()
	if c.ctx.Err() == nil && (concernsAll(err) || c.env.Err() != nil) {
		c.cancel(problem)
		return
	}
	c.count(func(p *CopyProgress) {
		p.Failed++
		if len(c.problems) < maxCopyProblems {
			c.problems = append(c.problems, problem)
		}
	})
	c.call(func() { c.opts.Problem(problem) }, c.opts.Problem != nil)
}

// concernsAll reports whether no other file can be copied either.
func concernsAll(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.As(err, new(*DisconnectedError)) || errors.Is(err, ErrRecovering)
}

// withoutPath removes the name that an error has already: the problem has the whole name.
func withoutPath(err error) error {
	switch e := err.(type) { //nolint:errorlint // a wrapper has something to say
	case *fs.PathError:
		return e.Err
	case *os.LinkError:
		return e.Err
	}
	return err
}

// cleanup makes requests that are useful even if the context of the copy has ended.
func (c *copying) cleanup(run func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), cmp.Or(c.env.opts.cleanupTime, defaultCleanupTime))
	defer cancel()
	run(ctx)
}

// hiddenName returns a new name for a file that is not whole.
func hiddenName() string {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return fmt.Sprintf(".exec-server-%s.part", hex.EncodeToString(random[:]))
}
