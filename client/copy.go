package client

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// CopyIn copies a file, or a directory with everything in it, from this machine to the
// machine of the FS. The copy gets the name, whose parent must exist; a directory is merged
// into an existing one. Permissions (without the set-user-ID, set-group-ID and sticky bits),
// times of modification and symbolic links are copied; owners are not. If localPath is a
// link, CopyIn copies its target.
//
// CopyIn skips a file that exists with the same size and time. It writes any other existing
// file in place, so that the file keeps its inode, owner, mode and links; if that fails or is
// interrupted, the error says that the file is incomplete. On Linux it replaces the file of a
// running program, which cannot be written, with a new one of the same owner, mode and
// extended attributes, unless the file has other names. A new file of more than 256 KiB
// has a hidden name, .exec-server-….part, until it is whole. CopyIn replaces a link where it
// copies a file to, and follows none below name.
//
// If a file cannot be copied, CopyIn continues with the others and returns a *CopyError at
// the end. If nothing more can be copied, it stops with a *fs.PathError. If the connection
// breaks, it continues over the next one. The end of the context of WithContext ends it;
// the server may still carry out requests that are under way.
//
// With servers without the capability fsMetadata (PROTOCOL.md), modes and times are not
// copied, each file is copied again, and links fail with an *UnsupportedError.
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

// CopyOut copies a file, or a directory with everything in it, from the machine of the FS to
// this machine. It is the counterpart of [FS.CopyIn], and does in the other direction what
// CopyIn does. The copy is called localPath, whose parent must exist.
//
// Whatever the server answers, CopyOut writes nothing outside of localPath: it copies links
// as they are on the machine, but does not write through them.
//
// With servers without the capability fsMetadata (PROTOCOL.md), modes and times are not
// copied, each file is copied again, links to directories fail with an *UnsupportedError,
// and the targets of other links are copied.
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
	} else if err == nil && !entry.mode.IsDir() { // the caller's own link is followed
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
// defaults. The copy calls one function at a time, which should return soon.
type CopyOptions struct {
	// Modes also gives files and directories that exist the permissions of their source,
	// and such directories its time of modification.
	Modes bool

	// Progress, if not nil, is called several times a second, and at the end.
	Progress func(CopyProgress)

	// Problem, if not nil, is called when something is not copied. The error names the file
	// as it is called at the source. It matches ErrSpecialFile for what cannot be copied,
	// which is not a failure.
	Problem func(*fs.PathError)
}

// CopyProgress reports the progress of a copy. Links count as files, and directories do not
// count.
type CopyProgress struct {
	Files, Bytes int64 // copied
	Unchanged    int64 // files that existed with the same size and time
	LeftOut      int64 // special files
	Replaced     int64 // of Files: those that replaced the file of a running program
	Failed       int64 // files and directories that could not be copied

	// TotalBytes is the size of the files to copy that have been found, all of them when
	// Complete is true.
	TotalBytes int64
	Complete   bool

	Name string // of the latest file, as it is called at the source
}

// ErrSpecialFile says that FS.CopyIn or FS.CopyOut left out something that is not a
// file, a directory or a symbolic link: a FIFO, a socket, or a device.
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

// copyEntry describes a file of either side of a copy, as a listing does.
type copyEntry struct {
	name     string      // below the root of the copy, with slashes; "." is the root
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

// mayName reports whether a name that a server lists can be a name in a directory of this
// machine, and nothing else.
func mayName(name string) bool {
	return name != "." && !strings.ContainsAny(name, "/\x00") && !strings.ContainsRune(name, filepath.Separator) && filepath.IsLocal(name)
}

// inUseError says that something else has the name at the target.
type inUseError struct{ err error }

func (e *inUseError) Error() string {
	return "the name is in use where it is copied to: " + e.err.Error()
}

func (e *inUseError) Unwrap() error { return e.err }

// incompleteError says that a file was only partly written under its name.
type incompleteError struct{ err error }

func (e *incompleteError) Error() string {
	return "the file is incomplete where it was copied to; copy it again: " + e.err.Error()
}

func (e *incompleteError) Unwrap() error { return e.err }

// Reasons why a file is not copied.
var (
	errTooDeep = fmt.Errorf("more than %d directories below each other; the tree may contain its own copy", maxCopyDepth)
	errGrew    = errors.New("the file became much larger while it was copied; copy it again")
	errShrunk  = errors.New("the file became shorter while it was copied; copy it again")
)
