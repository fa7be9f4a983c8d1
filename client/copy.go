package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// CopyOptions are the options of FS.CopyIn and FS.CopyOut. Nil and the zero value mean the
// defaults. The copy calls one function at a time, which should return soon.
type CopyOptions struct {
	// Progress, if not nil, is called several times a second, and at the end.
	Progress func(CopyProgress)

	// Problem, if not nil, is called when something is left out. The error names the file
	// as it is called where it is read. It matches ErrSpecialFile for what cannot be
	// copied, which is no failure.
	Problem func(*fs.PathError)

	// Only, if not nil, chooses what is copied of a directory. name is relative to it, with
	// slashes. The copy has nothing of a directory for which Only returns false. Only may be
	// called concurrently, also with the other functions.
	Only func(name string, directory bool) bool
}

// CopyProgress says how far a copy is. Links count as files, and directories do not count.
type CopyProgress struct {
	Files, Bytes int64 // copied
	Unchanged    int64 // files that were there already, which count nowhere else
	LeftOut      int64 // special files, which count nowhere else
	Failed       int64 // files and directories that could not be copied

	// TotalFiles and TotalBytes are to be copied, as far as is known. They are final when
	// Complete is true.
	TotalFiles, TotalBytes int64
	Complete               bool

	Name string // of a file in work, as it is called where it is read
}

// ErrSpecialFile says that FS.CopyIn or FS.CopyOut left something out that is neither a
// file nor a directory nor a link: a FIFO, a socket, or a device.
var ErrSpecialFile = errors.New("not a file, a directory or a link")

// CopyError says that some files could not be copied. The others were.
type CopyError struct {
	Failed   int64           // files and directories
	Problems []*fs.PathError // the first of them
}

func (e *CopyError) Error() string {
	if e.Failed == 1 {
		return e.Problems[0].Error()
	}
	return fmt.Sprintf("%d files or directories could not be copied; the first: %s", e.Failed, e.Problems[0])
}

// Unwrap returns the problems.
func (e *CopyError) Unwrap() []error {
	list := make([]error, len(e.Problems))
	for i, p := range e.Problems {
		list[i] = p
	}
	return list
}

// Bounds of a copy.
const (
	// smallFile is the size of the largest file that is copied by one request.
	smallFile = 256 << 10
	// largeFiles is how many larger ones are copied at a time, so that a file's first
	// and last round trips cost nothing.
	largeFiles = 16
	// copyAhead is how many files may be known and wait to be copied.
	copyAhead = 4096
	// listings is how many directories may be listed at a time.
	listings = 16
	// maxCopyDepth bounds a tree. Only one that has no end is deeper.
	maxCopyDepth = 256
	// maxCopyProblems bounds CopyError.Problems.
	maxCopyProblems = 16
	// copyTold is the time between two calls of CopyOptions.Progress.
	copyTold = 100 * time.Millisecond
)

// copying is one copy, in either direction.
type copying struct {
	fs       *FS
	link     *link
	ctx      context.Context // ends with a failure that concerns everything
	cancel   context.CancelCauseFunc
	opts     CopyOptions
	details  bool // the server knows times and links
	modes    bool // both systems have permission bits
	window   *window
	requests sync.WaitGroup // that wait for their answers, and files that are copied in blocks
	large    chan struct{}  // a token for each of these files

	mu       sync.Mutex
	progress CopyProgress
	told     time.Time
	problems []*fs.PathError

	telling sync.Mutex // held while a function of opts runs
}

// newCopying begins a copy. The caller must call finish.
func (f *FS) newCopying(opts *CopyOptions) *copying {
	c := &copying{fs: f, link: f.env.link, details: f.env.has(capMetadata), window: newWindow(), large: make(chan struct{}, largeFiles)}
	c.modes = c.details && runtime.GOOS != "windows" && c.link.machine.goos() != "windows"
	if opts != nil {
		c.opts = *opts
	}
	c.ctx, c.cancel = context.WithCancelCause(f.ctx)
	return c
}

// finish waits for everything under way and returns how the copy ended.
func (c *copying) finish(op, name string, err error) error {
	c.requests.Wait()
	if c.ctx.Err() != nil {
		err = context.Cause(c.ctx)
	}
	c.cancel(nil)
	c.mu.Lock()
	p := c.progress
	problems := c.problems
	c.mu.Unlock()
	p.Name = ""
	c.tell(func() { c.opts.Progress(p) }, c.opts.Progress != nil)
	switch {
	case errors.As(err, new(*fs.PathError)):
		return err
	case err != nil:
		return &fs.PathError{Op: op, Path: name, Err: err}
	case p.Failed > 0:
		return &CopyError{Failed: p.Failed, Problems: problems}
	}
	return nil
}

// tell calls a function of the options, if there is one.
func (c *copying) tell(call func(), wanted bool) {
	if !wanted {
		return
	}
	c.telling.Lock()
	defer c.telling.Unlock()
	call()
}

// count changes the progress, and tells it from time to time.
func (c *copying) count(change func(*CopyProgress)) {
	c.mu.Lock()
	change(&c.progress)
	now := time.Now()
	due := c.opts.Progress != nil && now.Sub(c.told) >= copyTold
	if due {
		c.told = now
	}
	p := c.progress
	c.mu.Unlock()
	c.tell(func() { c.opts.Progress(p) }, due)
}

// found counts a file that is to be copied.
func (c *copying) found(size int64) {
	c.count(func(p *CopyProgress) { p.TotalFiles++; p.TotalBytes += size })
}

// unchanged takes back what found counted, because the file is there.
func (c *copying) unchanged(size int64) {
	c.count(func(p *CopyProgress) { p.TotalFiles--; p.TotalBytes -= size; p.Unchanged++ })
}

// complete says that everything is found.
func (c *copying) complete() { c.count(func(p *CopyProgress) { p.Complete = true }) }

// copied counts a file of which n bytes were not counted yet.
func (c *copying) copied(name string, n int64) {
	c.count(func(p *CopyProgress) { p.Files++; p.Bytes += n; p.Name = name })
}

// moved counts bytes of a file in work.
func (c *copying) moved(name string, n int64) {
	c.count(func(p *CopyProgress) { p.Bytes += n; p.Name = name })
}

// wants reports whether the caller wants something copied. name is local, and relative to
// the root of the copy.
func (c *copying) wants(name string, directory bool) bool {
	return c.opts.Only == nil || c.opts.Only(filepath.ToSlash(name), directory)
}

// leftOut tells that something cannot be copied.
func (c *copying) leftOut(name string) {
	c.count(func(p *CopyProgress) { p.LeftOut++ })
	c.tell(func() { c.opts.Problem(&fs.PathError{Op: "copy", Path: name, Err: ErrSpecialFile}) }, c.opts.Problem != nil)
}

// failed records that one file or directory could not be copied. The others go on, unless
// the cause concerns them, too.
func (c *copying) failed(name string, err error) {
	switch {
	case c.ctx.Err() != nil, errors.As(err, new(*aboveError)):
		return // what ended the copy is the error, or is told already, and this follows from it
	case concernsAll(err) || c.fs.env.Err() != nil:
		c.cancel(&fs.PathError{Op: "copy", Path: name, Err: plain(err)})
		return
	}
	problem := &fs.PathError{Op: "copy", Path: name, Err: plain(err)}
	c.count(func(p *CopyProgress) {
		p.Failed++
		if len(c.problems) < maxCopyProblems {
			c.problems = append(c.problems, problem)
		}
	})
	c.tell(func() { c.opts.Problem(problem) }, c.opts.Problem != nil)
}

// concernsAll reports whether no other file can be copied either.
func concernsAll(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.As(err, new(*DisconnectedError)) || errors.Is(err, ErrRecovering)
}

// plain removes the name that an error has already: the problem has the whole name.
func plain(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// sameTime reports whether two times are the same, as far as all file systems keep them.
func sameTime(a, b time.Time) bool {
	return a.Truncate(time.Microsecond).Equal(b.Truncate(time.Microsecond))
}

// mayName reports whether a name of the far machine can be a name in a directory here, and
// nothing else.
func mayName(name string) bool {
	return name != "." && !strings.ContainsAny(name, "/\x00") && !strings.ContainsRune(name, filepath.Separator) && filepath.IsLocal(name)
}
