package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"execserver/protocol"
)

// CopyIn copies a file or a directory with everything in it from this machine to the
// machine of the FS. The copy gets the name, whose parent must exist; a directory is
// merged into one that is there. Permissions (without set-user-ID, set-group-ID and
// sticky bits), times of modification and links come along; owners do not. If localPath is
// a link, its target is copied.
//
// A file that is there already with the same size and time is left as it is. A large file
// is copied under a hidden name beside its own, .exec-server-….part, and renamed at the
// end. After an interrupted copy, another CopyIn continues such a file where the first one
// stopped. CopyIn replaces a link where it copies a file to, and follows none below name.
//
// CopyIn goes on after a file that cannot be copied, and returns a *CopyError at the end.
// If nothing more can be copied, it stops, with a *fs.PathError. If the connection breaks,
// it continues over the next one. The context of WithContext ends it; what it asked for
// before may still happen after it has returned.
//
// With servers without the capability fsMetadata (PROTOCOL.md), modes and times do not
// come along, each file is copied again, and links fail with an *UnsupportedError.
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
	c := &copyIn{copying: f.newCopying(opts), local: localPath}
	if target, err = c.realTarget(target); err != nil {
		return c.finish(op, name, err)
	}
	if info.IsDir() {
		return c.finish(op, localPath, c.tree(info, target))
	}
	return c.finish(op, localPath, c.single(info, target))
}

// copyIn is a copy to the far machine.
type copyIn struct {
	*copying
	local string   // as the caller names it
	root  *os.Root // of a directory: itself, so that nothing in it leads out; of a file: its directory
	free  bool     // the far path is free of links, and links below it are not followed
	ahead chan inItem
	looks chan struct{} // one token for each listing that is held
	known atomic.Int64  // bytes of directories with several pages, in all listings that are held
}

// realTarget resolves links in the path of the target, so that CopyIn need follow none.
func (c *copyIn) realTarget(target string) (string, error) {
	real, err := c.link.realPath(c.ctx, target)
	if err == nil {
		c.free = true
		return real, nil
	}
	if !isNotExist(err) {
		if errors.Is(err, errors.ErrUnsupported) {
			return target, nil
		}
		return "", err
	}
	at := strings.LastIndexByte(target, '/')
	if c.link.machine.goos() == "windows" {
		at = strings.LastIndexAny(target, `/\`)
	}
	dir, err := c.link.realPath(c.ctx, target[:max(at, 1)])
	if err != nil {
		return "", err
	}
	c.free = true
	return c.joinFar(dir, target[at+1:]), nil
}

// inItem is a step of a copy: something in a directory, or what concerns the directory.
type inItem struct {
	dir  *inDir
	step inStep
	name string
	info fs.FileInfo
}

type inStep int

const (
	inBegin inStep = iota // of a directory
	inEntry               // anything but a directory
	inLast                // there are no more entries; directories follow
	inEnd                 // of a directory
)

// inDir is a directory that is being copied.
type inDir struct {
	parent  *inDir // nil for the root of the copy
	name    string // below the root of the copy
	far     string
	info    fs.FileInfo
	depth   int
	pending atomic.Int64 // what is not copied yet, and the directory itself

	looked  chan struct{} // closed when the fields below are known
	fresh   bool          // the directory did not exist
	entries map[string]*farEntry
	counted int64 // of entries, in copyIn.known
	err     error
	holds   bool // a token of looks

	links   map[string]bool // instead of entries, after the entries are copied
	skipped bool            // the directory cannot be copied, for the sender
	made    chan struct{}   // closed when the directory exists, or cannot
	madeErr error
}

// exists waits until the directory exists on the machine.
func (d *inDir) exists() error {
	<-d.made
	if d.madeErr != nil {
		return &aboveError{d.madeErr}
	}
	return nil
}

// aboveError says that a directory could not be copied, which is told already.
type aboveError struct{ err error }

func (e *aboveError) Error() string { return e.err.Error() }

func (e *aboveError) Unwrap() error { return e.err }

// forget drops what is known about the directory on the machine, except links, which the
// directories that follow must not take for directories.
func (d *inDir) forget() {
	for name, e := range d.entries {
		if e.kind == protocol.KindSymlink {
			if d.links == nil {
				d.links = make(map[string]bool)
			}
			d.links[name] = true
		}
	}
	d.entries = nil // no more than listings of them are held
}

// path returns how the caller would call a name in a directory.
func (c *copyIn) path(d *inDir, name string) string { return filepath.Join(c.local, d.name, name) }

// tree copies a directory.
func (c *copyIn) tree(info fs.FileInfo, target string) (err error) {
	if c.root, err = os.OpenRoot(c.local); err != nil {
		return err
	}
	defer c.root.Close()
	defer c.requests.Wait()
	c.ahead, c.looks = make(chan inItem, copyAhead), make(chan struct{}, listings)
	c.requests.Go(func() {
		defer close(c.ahead)
		c.scan(&inDir{name: ".", far: target, info: info})
		c.complete()
	})
	for it := range c.ahead {
		if err == nil {
			err = c.step(it)
			if err != nil {
				c.cancel(err)
			}
		}
	}
	return err
}

// put hands an item to the sender.
func (c *copyIn) put(it inItem) bool {
	select {
	case c.ahead <- it:
		return true
	case <-c.ctx.Done():
		return false
	}
}

// scan finds everything in a directory, and how it is on the machine. It reports whether
// the copy goes on.
func (c *copyIn) scan(d *inDir) bool {
	d.pending.Store(1)
	d.looked, d.made = make(chan struct{}), make(chan struct{})
	if err := c.look(d); err != nil {
		return false
	}
	if d.parent == nil {
		<-d.looked // if it did not exist, nothing below it did
	}
	if !c.put(inItem{dir: d, step: inBegin}) {
		return false
	}
	var dirs []fs.FileInfo
	err := c.scanEntries(d, func(info fs.FileInfo) bool {
		if info.IsDir() {
			dirs = append(dirs, info)
			return true
		}
		if info.Mode().IsRegular() || info.Mode().Type() == fs.ModeSymlink {
			c.found(info.Size())
		}
		d.pending.Add(1)
		return c.put(inItem{dir: d, step: inEntry, name: info.Name(), info: info})
	})
	if err != nil {
		c.failed(c.path(d, ""), err)
	}
	if !c.put(inItem{dir: d, step: inLast}) {
		return false
	}
	for _, info := range dirs {
		child := &inDir{parent: d, name: filepath.Join(d.name, info.Name()), far: c.joinFar(d.far, info.Name()), info: info, depth: d.depth + 1}
		if child.depth > maxCopyDepth {
			c.failed(c.path(child, ""), errTooDeep)
			continue
		}
		d.pending.Add(1)
		if !c.scan(child) {
			return false
		}
	}
	return c.put(inItem{dir: d, step: inEnd})
}

// errTooDeep says that a tree has no end that CopyIn or CopyOut would reach.
var errTooDeep = fmt.Errorf("more than %d directories below each other; the tree may contain its own copy", maxCopyDepth)

// scanEntries calls f for everything in a directory of this machine.
func (c *copyIn) scanEntries(d *inDir, f func(fs.FileInfo) bool) error {
	dir, err := c.root.Open(d.name)
	if err != nil {
		return err
	}
	defer dir.Close()
	const some = 256
	for {
		names, err := dir.Readdirnames(some)
		for _, name := range names {
			info, err := c.root.Lstat(filepath.Join(d.name, name))
			switch {
			case isNotExist(err): // removed meanwhile
			case err != nil:
				c.failed(c.path(d, name), err)
			case !c.wants(filepath.Join(d.name, name), info.IsDir()):
			case !f(info):
				return nil
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// step carries out one step of a tree. It returns an error if the copy cannot go on.
func (c *copyIn) step(it inItem) error {
	d := it.dir
	switch it.step {
	case inBegin:
		return c.begin(d)
	case inLast:
		d.forget()
		c.known.Add(-d.counted)
		if d.holds {
			<-c.looks
		}
		return nil
	case inEnd:
		return c.release(d)
	}
	if d.skipped {
		return c.release(d)
	}
	return c.entry(d, it.name, it.info)
}

// begin makes a directory on the machine, if it is not there.
func (c *copyIn) begin(d *inDir) error {
	select {
	case <-d.looked:
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
	above := d.parent != nil && d.parent.skipped
	err := d.err
	if d.parent != nil && d.parent.links[d.info.Name()] {
		err = errThere(syscall.ENOTDIR)
	}
	d.skipped = above || err != nil
	if d.skipped && !above {
		c.failed(c.path(d, ""), err)
	}
	if d.skipped || !d.fresh {
		d.madeErr = err
		close(d.made)
		return nil
	}
	params := protocol.CreateDirectoryParams{Path: c.link.machine.uri(d.far), Recursive: true, FollowSymlinks: !c.free}
	if c.modes {
		mode := permissions(d.info) | 0o700 // until everything is in it
		params.Mode = &mode
	}
	var ready func() error
	if d.parent != nil {
		ready = d.parent.exists
	}
	d.pending.Add(1)
	return c.send(protocol.MethodCreateDirectory, params, 0, ready, func(_ answer, err error) {
		if d.madeErr = err; err != nil {
			c.failed(c.path(d, ""), err)
		}
		close(d.made)
		c.settled(d)
	})
}

// release records that something in a directory is copied, or the directory itself. After
// the last of them, the directory gets its mode and its time.
func (c *copyIn) release(d *inDir) error {
	for ; d != nil && d.pending.Add(-1) == 0; d = d.parent {
		at := d
		if at.skipped || at.madeErr != nil || !c.details {
			continue
		}
		err := c.follow(protocol.MethodSetMetadata, c.describe(at.far, at.info), nil, func(_ answer, err error) {
			if err != nil {
				c.failed(c.path(at, ""), err)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// settled is like release, at the end of a request.
func (c *copyIn) settled(d *inDir) {
	if err := c.release(d); err != nil {
		c.failed(c.path(d, ""), err)
	}
}

// entry copies anything but a directory.
func (c *copyIn) entry(d *inDir, name string, info fs.FileInfo) error {
	switch there := d.entries[name]; {
	case info.Mode().Type() == fs.ModeSymlink:
		return c.symlink(d, name, info, there)
	case !info.Mode().IsRegular():
		c.leftOut(c.path(d, name))
		return c.release(d)
	default:
		return c.file(d, name, there)
	}
}

// permissions returns the mode of a copy.
func permissions(info fs.FileInfo) protocol.FileMode { return protocol.FileMode(info.Mode().Perm()) }

// describe returns the request that gives a copy its mode and time.
func (c *copyIn) describe(far string, info fs.FileInfo) protocol.SetMetadataParams {
	params := protocol.SetMetadataParams{
		Path: c.link.machine.uri(far), FollowSymlinks: !c.free, FileTime: protocol.NewFileTime(info.ModTime()),
	}
	if c.modes {
		mode := permissions(info)
		params.Mode = &mode
	}
	return params
}

// symlink copies a link.
func (c *copyIn) symlink(d *inDir, name string, info fs.FileInfo, there *farEntry) error {
	path := c.path(d, name)
	text, err := c.root.Readlink(filepath.Join(d.name, name))
	switch {
	case err != nil:
		c.failed(path, err)
		return c.release(d)
	case !c.details:
		c.failed(path, &UnsupportedError{"make a link", capMetadata})
		return c.release(d)
	case there != nil && there.kind == protocol.KindSymlink && there.target == text:
		c.unchanged(info.Size())
		return c.release(d)
	case there.inTheWay() != nil:
		c.failed(path, there.inTheWay())
		return c.release(d)
	}
	far := c.joinFar(d.far, name)
	params := protocol.SymlinkParams{Path: c.link.machine.uri(far), FollowSymlinks: !c.free, LinkTarget: protocol.NewLinkTarget(text)}
	done := func(err error) {
		defer c.settled(d)
		if errors.Is(err, fs.ErrExist) && c.isLink(far, text) {
			err = nil // the request was repeated
		}
		if err != nil {
			c.failed(path, err)
			return
		}
		c.copied(path, info.Size())
	}
	if there == nil {
		return c.send(protocol.MethodSymlink, params, len(text), d.exists, func(_ answer, err error) { done(err) })
	}
	// A request to remove something must not be repeated after the one that makes the link.
	return c.beside(func() {
		removal := c.removal(far)
		removal.FollowSymlinks = true // it removes a link itself
		err := c.ask(protocol.MethodRemove, removal)
		if err == nil {
			err = c.ask(protocol.MethodSymlink, params)
		}
		done(err)
	})
}

// isLink reports whether a path of the machine is a link with a text.
func (c *copyIn) isLink(far, text string) bool {
	e, err := c.at(far, true)
	return err == nil && e.kind == protocol.KindSymlink && e.target == text
}

// inTheWay returns an error if something is there that no copy replaces: a directory, a
// device, a FIFO or a socket.
func (e *farEntry) inTheWay() error {
	switch {
	case e == nil, e.kind == protocol.KindFile, e.kind == protocol.KindSymlink:
		return nil
	case e.kind == protocol.KindDirectory:
		return errThere(syscall.EISDIR)
	}
	return errThere(ErrSpecialFile)
}

// errThere says that something else has the name on the machine.
func errThere(err error) error { return &thereError{err} }

type thereError struct{ err error }

func (e *thereError) Error() string {
	return "the name is in use where it is copied to: " + e.err.Error()
}

func (e *thereError) Unwrap() error { return e.err }
