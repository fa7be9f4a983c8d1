package client

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"execserver/protocol"
)

// single copies a file that the caller named.
func (c *copyOut) single(local string, entry *farEntry) (err error) {
	if real, err := filepath.EvalSymlinks(local); err == nil {
		local = real // the caller's own link is followed
	}
	if c.root, err = os.OpenRoot(filepath.Dir(local)); err != nil {
		return err
	}
	defer c.root.Close()
	defer c.requests.Wait()
	c.found(entry.size)
	c.complete()
	d := &outDir{name: ".", there: true}
	d.pending.Store(2) // never released: the directory is not part of the copy
	return c.copyFile(outFile{d, filepath.Base(local), c.far, entry})
}

// copyFile copies a file, unless the same is there. It returns when the file is on its way.
func (c *copyOut) copyFile(f outFile) error {
	there, err := c.root.Lstat(f.local())
	switch {
	case err == nil:
		err = inTheWay(there)
	case isNotExist(err):
		err = nil
	}
	if err != nil {
		c.failed(f.far, err)
		c.release(f.dir)
		return nil
	}
	if there != nil && there.Mode().IsRegular() && f.entry.regular() &&
		there.Size() == f.entry.size && sameTime(there.ModTime(), f.entry.modified) {
		c.unchanged(f.entry.size)
		if c.modes && !f.entry.is(permissions(there)) {
			if err := c.root.Chmod(f.local(), f.entry.perm(0o600)); err != nil {
				c.failed(f.far, err)
			}
		}
		c.release(f.dir)
		return nil
	}
	if f.entry.size <= smallFile {
		return c.small(f)
	}
	return c.inBlocks(f)
}

// inTheWay returns an error if something is there that no copy replaces: a directory, a
// device, a FIFO or a socket.
func inTheWay(there fs.FileInfo) error {
	switch mode := there.Mode(); {
	case mode.IsDir():
		return errThere(syscall.EISDIR)
	case !mode.IsRegular() && mode.Type() != fs.ModeSymlink:
		return errThere(ErrSpecialFile)
	}
	return nil
}

// small copies a file by one request.
func (c *copyOut) small(f outFile) error {
	// FileParams would spell what is the default, and small files are many.
	params := struct {
		Path protocol.Path `json:"path"`
	}{c.link.machine.uri(f.far)}
	return c.send(protocol.MethodReadFile, params, int(f.entry.size), nil, func(a answer, err error) {
		var result protocol.ReadFileResult
		if len(a.raw)+len(a.data) > maxGrown {
			err = errGrew
		}
		if err == nil {
			err = a.decode(&result)
		}
		data := result.Data
		if err == nil {
			err = c.store(f, data)
		}
		if err != nil {
			c.failed(f.far, err)
		} else {
			c.copied(f.far, int64(len(data)))
		}
		c.release(f.dir)
	})
}

// maxGrown bounds the answer with a small file, which may have grown meanwhile: many
// answers may be in memory.
const maxGrown = 8 * smallFile

// errGrew says that a small file became a large one while it was copied.
var errGrew = errors.New("the file became much larger while it was copied; copy it again")

// store makes data the content of a file here, at once.
func (c *copyOut) store(f outFile, data []byte) error {
	_, this := partNames(f.name, f.entry.size, f.entry.modified)
	part := filepath.Join(f.dir.name, partName(this))
	file, err := c.root.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_WRONLY, c.newMode())
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return c.publish(f, part, file, err)
}

// newMode is the mode of a file until it is complete.
func (c *copyOut) newMode() fs.FileMode {
	if c.modes {
		return 0o600
	}
	return 0o666
}

// publish gives a complete file its mode, its time and its name, and closes it. If err is
// not nil, or something else fails, it removes the file.
func (c *copyOut) publish(f outFile, part string, file *os.File, err error) error {
	if err == nil && c.modes {
		err = file.Chmod(f.entry.perm(0o600))
	}
	err = errors.Join(err, file.Close())
	if err == nil && c.details {
		err = c.root.Chtimes(part, f.entry.modified, f.entry.modified)
	}
	if err == nil {
		err = c.root.Rename(part, f.local())
	}
	if err != nil {
		_ = c.root.Remove(part) // the first error counts
	}
	return err
}

// inBlocks copies a file in blocks, beside what follows.
func (c *copyOut) inBlocks(f outFile) error {
	return c.beside(func() {
		if err := c.inParts(f); err != nil {
			c.failed(f.far, err)
		} else {
			c.copied(f.far, 0)
		}
		c.release(f.dir)
	})
}

// inParts copies a file under a hidden name, where it continues what an earlier copy left
// there, and renames it.
func (c *copyOut) inParts(f outFile) error {
	any, this := partNames(f.name, f.entry.size, f.entry.modified)
	part, file, from, err := c.openPart(f, this)
	if err != nil {
		return err
	}
	c.count(func(p *CopyProgress) { p.TotalBytes -= from })
	source, err := c.link.openFile(c.ctx, f.far, f.entry.meta())
	if errors.Is(err, errors.ErrUnsupported) {
		var data []byte
		data, err = c.link.readFile(c.ctx, f.far)
		source = wholeFile(data)
	}
	if err == nil {
		from, err = c.download(f, source, file, from)
		if h, ok := source.(*handle); ok {
			id, _ := h.current()
			c.drop(id)
		}
	}
	if err != nil {
		_ = file.Close()
		if from == 0 || errors.Is(err, errShrunk) { // else it can be continued
			_ = c.root.Remove(part) // the first error counts
		}
		return err
	}
	if err := c.publish(f, part, file, nil); err != nil {
		return err
	}
	for _, name := range f.dir.parts { // of versions that nobody will continue
		if old := filepath.Join(f.dir.name, name); strings.HasPrefix(name, any) && old != part {
			_ = c.root.Remove(old)
		}
	}
	return nil
}

// openPart opens the file that an earlier copy left, or a new one.
func (c *copyOut) openPart(f outFile, beginning string) (part string, file *os.File, from int64, err error) {
	f.dir.once.Do(func() { f.dir.parts = c.partsIn(f.dir) })
	for _, name := range f.dir.parts {
		if !strings.HasPrefix(name, beginning) {
			continue
		}
		part = filepath.Join(f.dir.name, name)
		// Another program may have put a link there.
		before, err := c.root.Lstat(part)
		if err != nil || !before.Mode().IsRegular() || before.Size() > f.entry.size {
			continue
		}
		file, err := c.root.OpenFile(part, os.O_WRONLY, 0)
		if err != nil {
			continue
		}
		if info, err := file.Stat(); err == nil && os.SameFile(before, info) {
			return part, file, info.Size(), nil
		}
		_ = file.Close()
	}
	part = filepath.Join(f.dir.name, partName(beginning))
	file, err = c.root.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_WRONLY, c.newMode())
	return part, file, 0, err
}

// partsIn lists what earlier copies left in a directory.
func (c *copyOut) partsIn(d *outDir) []string {
	if !d.there {
		return nil
	}
	dir, err := c.root.Open(d.name)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // without them, everything is copied again
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, partPrefix) })
}

// download copies the blocks of a file from an offset on, and returns up to where it came.
// It writes them one after the other, so that the file has no gaps whenever it ends.
func (c *copyOut) download(f outFile, source blocks, file *os.File, from int64) (written int64, err error) {
	type arrival struct {
		data []byte
		want int
		p    passage
		err  error
	}
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	written = from
	flight := make(chan chan arrival, maxCalls)
	var asking sync.WaitGroup
	asking.Go(func() {
		defer close(flight)
		for offset := from; offset < f.entry.size; {
			size := int(min(int64(c.window.block()), f.entry.size-offset))
			p, err := c.window.enter(ctx, size+requestBytes, false)
			if err != nil {
				return
			}
			arrived := make(chan arrival, 1)
			at := offset
			asking.Go(func() {
				data, _, err := source.readBlock(ctx, at, size)
				if err == nil {
					c.window.answered(p)
				}
				arrived <- arrival{data, size, p, err}
			})
			flight <- arrived
			offset += int64(size)
		}
	})
	for arrived := range flight {
		a := <-arrived
		switch {
		case err != nil:
		case a.err != nil:
			err = a.err
		case len(a.data) != a.want:
			err = errShrunk
		default:
			if _, err = file.WriteAt(a.data, written); err == nil {
				written += int64(a.want)
				c.moved(f.far, int64(a.want))
			}
		}
		if err != nil {
			cancel(err)
		}
		c.window.leave(a.p)
	}
	asking.Wait()
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return written, err
}
