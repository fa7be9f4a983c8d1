package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// CopyIn copies a file, or a directory with everything in it, from this machine to the path name of
// the FS. The parent of name must exist; a directory is merged into an existing one. CopyIn copies
// permissions (without the set-user-ID, set-group-ID and sticky bits), modification times and
// symbolic links, but not owners. If localPath is a link, CopyIn copies its target.
//
// CopyIn skips a file that exists with the same size and time. It writes any other existing file in
// place, which keeps the file's inode, owner, mode and links. If such a write is interrupted, the
// error says that the file is incomplete. On Linux, it replaces the file of a running program, which
// cannot be written, unless the file has other hard links. A new file of more than 256 KiB has a
// hidden name, .exec-server-….part, until it is complete. CopyIn replaces a link in the place of a
// file, and follows no links below name.
//
// If a file cannot be copied, CopyIn continues with the others and returns a *CopyError at the end.
// If nothing more can be copied, for example because the disk is full, it stops with a
// *fs.PathError. If the connection breaks, it continues over the next one. When the context given to
// WithContext is done, CopyIn stops; the server may still carry out requests that are in progress.
//
// If the server lacks the capability fsMetadata, CopyIn copies no modes and times, copies every file
// each time, and fails for links with an *UnsupportedError.
func (f *FS) CopyIn(localPath, name string, opts *CopyOptions) error {
	const op = "copy"
	target, err := f.osPath(op, name)
	if err != nil {
		return err
	}
	info, err := os.Stat(localPath)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		if localPath, err = filepath.EvalSymlinks(localPath); err != nil {
			return err
		}
	}
	c := f.newCopying(opts)
	from, err := c.local(localPath, info.IsDir())
	if err != nil {
		return c.finish(op, localPath, err)
	}
	defer from.close()
	to := c.remote(target)
	old, err := to.resolve()
	if err != nil {
		return c.finish(op, name, err)
	}
	c.from, c.to = from, to
	return c.finish(op, localPath, c.run(infoEntry(".", info), old))
}

// CopyOut copies a file, or a directory with everything in it, from the path name of the FS to
// localPath on this machine. It works like [FS.CopyIn]. The parent of localPath must exist.
//
// CopyOut writes nothing outside of localPath, regardless of the server's answers: it copies links
// as they are on the machine, but does not write through them.
//
// If the server lacks the capability fsMetadata, CopyOut copies no modes and times, and copies every
// file each time. It copies the targets of links to files, and fails for links to directories with
// an *UnsupportedError.
func (f *FS) CopyOut(name, localPath string, opts *CopyOptions) error {
	const op = "copy"
	source, err := f.osPath(op, name)
	if err != nil {
		return err
	}
	c := f.newCopying(opts)
	from := c.remote(source)
	entry, err := from.stat(".", true)
	if err != nil {
		return c.finish(op, source, err)
	}
	var old *copyEntry
	info, err := os.Stat(localPath)
	if isNotExist(err) {
		info, err = os.Lstat(localPath) // a dangling link
	} else if err == nil && !entry.mode.IsDir() { // follow the link that the caller has named
		localPath, err = filepath.EvalSymlinks(localPath)
	}
	switch {
	case err == nil:
		old = infoEntry(".", info)
	case isNotExist(err) && entry.mode.IsDir():
		err = os.Mkdir(localPath, c.firstMode(entry))
	case isNotExist(err):
		err = nil
	}
	if err != nil {
		return c.finish(op, source, err)
	}
	to, err := c.local(localPath, entry.mode.IsDir() && (old == nil || old.mode.IsDir()))
	if err != nil {
		return c.finish(op, source, err)
	}
	defer to.close()
	c.from, c.to = from, to
	return c.finish(op, source, c.run(entry, old))
}

// CopyOptions are the options of FS.CopyIn and FS.CopyOut. Nil and the zero value mean the
// defaults. The functions are called one at a time, and should return quickly.
type CopyOptions struct {
	// Modes also updates the permissions of existing files and directories, and the modification
	// times of existing directories. New ones always have those of their source.
	Modes bool

	// Progress, if not nil, is called several times a second, and at the end.
	Progress func(CopyProgress)

	// Problem, if not nil, is called for each file that is not copied. The error has the path
	// of the file at the source. If it matches ErrSpecialFile, the file was left out, which
	// is not a failure.
	Problem func(*fs.PathError)
}

// CopyProgress reports the progress of a copy. Links count as files; directories are not
// counted.
type CopyProgress struct {
	Files, Bytes int64 // copied
	Unchanged    int64 // files that existed with the same size and time
	LeftOut      int64 // special files
	Replaced     int64 // files, included in Files, that replaced the file of a running program
	Failed       int64 // files and directories that could not be copied

	// TotalBytes is the size of the files to copy that have been found so far. Complete means
	// that all have been found.
	TotalBytes int64
	Complete   bool

	Name string // path of the latest file at the source
}

// ErrSpecialFile means that FS.CopyIn or FS.CopyOut left out something that is not a file, a
// directory or a symbolic link: a FIFO, a socket, or a device.
var ErrSpecialFile = errors.New("not a file, a directory or a link")

// CopyError reports that some files could not be copied. The others were copied.
type CopyError struct {
	Failed   int64           // files and directories
	Problems []*fs.PathError // the first of them, at most 16
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
	c.call(func() { c.opts.Progress(p) })
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

// call calls a function of the options.
func (c *copying) call(f func()) {
	c.calling.Lock()
	defer c.calling.Unlock()
	f()
}

// count changes the progress, and reports it from time to time.
func (c *copying) count(change func(*CopyProgress)) {
	c.mu.Lock()
	change(&c.progress)
	now := time.Now()
	due := now.Sub(c.reported) >= progressInterval
	if due {
		c.reported = now
	}
	p := c.progress
	c.mu.Unlock()
	if due {
		c.call(func() { c.opts.Progress(p) })
	}
}

// copied counts a file, and n bytes of it that were not counted yet.
func (c *copying) copied(name string, n int64) {
	c.count(func(p *CopyProgress) { p.Files++; p.Bytes += n; p.Name = c.from.path(name) })
}

// replaced counts a file that replaced the file of a running program.
func (c *copying) replaced() { c.count(func(p *CopyProgress) { p.Replaced++ }) }

// leftOut reports a special file.
func (c *copying) leftOut(name string) {
	c.count(func(p *CopyProgress) { p.LeftOut++ })
	c.call(func() { c.opts.Problem(&fs.PathError{Op: "copy", Path: c.from.path(name), Err: ErrSpecialFile}) })
}

// failed records the error of a file or directory. The copy continues unless the error concerns
// the other files too. failed ignores nil.
func (c *copying) failed(name string, err error) {
	incomplete := errors.As(err, new(*incompleteError))
	if err == nil || c.ctx.Err() != nil && !incomplete {
		return // a consequence of the error that ended the copy
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
	c.call(func() { c.opts.Problem(problem) })
}

// concernsAll reports whether an error prevents all other copies too.
func concernsAll(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, ErrRecovering) ||
		errors.As(err, new(*InterruptedError)) || errors.As(err, new(*DisconnectedError))
}

// withoutPath removes the path from an error, because the problem has the whole path.
func withoutPath(err error) error {
	switch e := err.(type) { //nolint:errorlint // a wrapper adds information
	case *fs.PathError:
		return e.Err
	case *os.LinkError:
		return e.Err
	}
	return err
}

// inUseError means that the target name is in use.
type inUseError struct{ err error }

func (e *inUseError) Error() string {
	return "the name is in use at the target: " + e.err.Error()
}

func (e *inUseError) Unwrap() error { return e.err }

// incompleteError means that a target file was only partly written.
type incompleteError struct{ err error }

func (e *incompleteError) Error() string {
	return "the file is incomplete at the target; copy it again: " + e.err.Error()
}

func (e *incompleteError) Unwrap() error { return e.err }

// Reasons why a file is not copied.
var (
	errTooDeep = fmt.Errorf("directories are nested more than %d deep; the tree may contain its own copy", maxCopyDepth)
	errGrew    = errors.New("the file became much larger while it was copied; copy it again")
	errShrunk  = errors.New("the file became shorter while it was copied; copy it again")
)
