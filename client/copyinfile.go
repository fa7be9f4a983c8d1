package client

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"execserver/protocol"
)

// single copies a file that the caller named.
func (c *copyIn) single(info fs.FileInfo, target string) (err error) {
	if !info.Mode().IsRegular() {
		return &fs.PathError{Op: "copy", Path: c.local, Err: ErrSpecialFile}
	}
	real, err := filepath.EvalSymlinks(c.local)
	if err != nil {
		return err
	}
	if c.root, err = os.OpenRoot(filepath.Dir(real)); err != nil {
		return err
	}
	defer c.root.Close()
	defer c.requests.Wait()
	c.found(info.Size())
	c.complete()
	d := &inDir{name: ".", made: make(chan struct{})}
	d.pending.Store(2) // never released: the directory is not part of the copy
	close(d.made)
	at := strings.LastIndexByte(target, '/')
	if c.link.machine.goos() == "windows" {
		at = strings.LastIndexAny(target, `/\`)
	}
	d.far = target[:max(at, 1)]
	there, err := c.at(target, true)
	if err != nil && !isNotExist(err) {
		return err
	}
	if info.Size() > smallFile {
		if err := c.lookForParts(d); err != nil {
			return err
		}
	}
	return c.copyFile(d, inFile{filepath.Base(real), c.local, target}, there)
}

// lookForParts lists what earlier copies may have left in a directory.
func (c *copyIn) lookForParts(d *inDir) error {
	d.entries = make(map[string]*farEntry)
	params := c.link.listing(d.far, c.details)
	size := 0
	for page := &params; page != nil && size <= maxLooked && c.ctx.Err() == nil; {
		entries, next, _ := c.listed(*page) // without it, everything is copied again
		for _, e := range entries {
			if strings.HasPrefix(e.FileName, partPrefix) {
				d.entries[e.FileName] = entryOf(e)
				size += listedSize(e)
			}
		}
		page = next
	}
	return context.Cause(c.ctx)
}

// inFile is a file that is to be copied.
type inFile struct {
	name string // in its directory here
	path string // as the caller would call it
	far  string
}

// file copies a file of a tree.
func (c *copyIn) file(d *inDir, name string, there *farEntry) error {
	return c.copyFile(d, inFile{name, c.path(d, name), c.joinFar(d.far, name)}, there)
}

// copyFile copies a file, unless the same is there. It returns when the file is on its way.
func (c *copyIn) copyFile(d *inDir, f inFile, there *farEntry) error {
	// A FIFO that has taken the file's place does not block.
	file, err := c.root.OpenFile(filepath.Join(d.name, f.name), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		c.failed(f.path, err)
		return c.release(d)
	}
	info, err := file.Stat()
	switch {
	case err == nil && !info.Mode().IsRegular():
		err = ErrSpecialFile
	case err == nil:
		err = there.inTheWay()
	}
	if err != nil {
		_ = file.Close()
		c.failed(f.path, err)
		return c.release(d)
	}
	if there.regular() && there.size == info.Size() && sameTime(there.modified, info.ModTime()) {
		_ = file.Close()
		c.unchanged(info.Size())
		return c.sameMode(d, f, info, there)
	}
	// A link, and whatever else is there, is replaced by a rename.
	if info.Size() <= smallFile && (there == nil || there.kind == protocol.KindFile) {
		return c.small(d, f, file, info)
	}
	return c.inBlocks(d, f, file, info, there != nil && there.kind == protocol.KindSymlink)
}

// sameMode gives a file that is there the mode of the file here.
func (c *copyIn) sameMode(d *inDir, f inFile, info fs.FileInfo, there *farEntry) error {
	mode := permissions(info)
	if !c.modes || there.is(mode) {
		return c.release(d)
	}
	params := protocol.SetMetadataParams{Path: c.link.machine.uri(f.far), Mode: &mode, FollowSymlinks: !c.free}
	return c.send(protocol.MethodSetMetadata, params, 0, nil, func(_ answer, err error) {
		if err != nil {
			c.failed(f.path, err)
		}
		c.settled(d)
	})
}

// small copies a file by one request, and closes it.
func (c *copyIn) small(d *inDir, f inFile, file *os.File, info fs.FileInfo) error {
	data, err := io.ReadAll(io.LimitReader(file, smallFile+1))
	if err == nil && len(data) > smallFile { // it has grown
		return c.inBlocks(d, f, file, info, false)
	}
	_ = file.Close()
	if err != nil {
		c.failed(f.path, err)
		return c.release(d)
	}
	return c.send(protocol.MethodWriteFile, c.whole(f, data, info), len(data), d.exists, func(_ answer, err error) {
		defer c.settled(d)
		if err != nil {
			c.failed(f.path, err)
			return
		}
		c.copied(f.path, int64(len(data)))
	})
}

// whole returns the request that writes a file.
func (c *copyIn) whole(f inFile, data []byte, info fs.FileInfo) protocol.WriteFileParams {
	params := protocol.WriteFileParams{
		Path: c.link.machine.uri(f.far), Data: data, FollowSymlinks: !c.free,
	}
	if c.details {
		params.FileTime = protocol.NewFileTime(info.ModTime())
	}
	if c.modes {
		mode := permissions(info)
		params.Mode = &mode
	}
	return params
}

// inBlocks copies a file in blocks, beside what follows, and closes it. It may take the
// place of a link.
func (c *copyIn) inBlocks(d *inDir, f inFile, file *os.File, info fs.FileInfo, link bool) error {
	entries := d.entries // the sender forgets them
	err := c.beside(func() {
		defer c.settled(d)
		defer file.Close()
		err := d.exists()
		if err == nil {
			err = c.blocks(f, file, info, d.far, entries, link)
		}
		if err != nil {
			c.failed(f.path, err)
			return
		}
		c.copied(f.path, 0)
	})
	if err != nil {
		_ = file.Close()
	}
	return err
}

// blocks copies a file in blocks, as the server can.
func (c *copyIn) blocks(f inFile, file *os.File, info fs.FileInfo, dir string, entries map[string]*farEntry, link bool) error {
	size := info.Size()
	switch {
	case c.details && c.fs.env.has(capRename):
		return c.inParts(f, file, info, dir, entries, link)
	case c.fs.env.has(capFileWriting):
		u := &upload{copying: c.copying, file: file, name: f.path, far: f.far, size: size, mode: protocol.OpenReplace}
		return u.run(0)
	case size > maxWhole:
		return fmt.Errorf("the server takes files of up to %d bytes: %w", maxWhole, &UnsupportedError{"write a large file", capFileWriting})
	}
	data, err := io.ReadAll(io.NewSectionReader(file, 0, size))
	if err != nil {
		return err
	}
	if err := c.ask(protocol.MethodWriteFile, c.whole(f, data, info)); err != nil {
		return err
	}
	c.moved(f.path, int64(len(data)))
	return nil
}

// partPrefix begins the names of files that are not copied completely.
const partPrefix = ".exec-server-"

// partNames returns the beginnings of the names under which a file is copied: of any
// version of it, and of this one. Who cannot read the file cannot guess the second.
func partNames(name string, size int64, modified time.Time) (any, this string) {
	sum := func(text string) string {
		h := sha256.Sum256([]byte(text))
		return hex.EncodeToString(h[:6]) + "-"
	}
	any = partPrefix + sum(name)
	return any, any + sum(fmt.Sprint(name, "\x00", size, modified.UnixNano()))
}

// partName returns a new name with a beginning.
func partName(beginning string) string {
	var random [6]byte
	_, _ = rand.Read(random[:]) // never fails
	return beginning + hex.EncodeToString(random[:]) + ".part"
}

// inParts copies a file under a hidden name, where it continues what an earlier copy left
// there, and renames it.
func (c *copyIn) inParts(f inFile, file *os.File, info fs.FileInfo, dir string, entries map[string]*farEntry, link bool) error {
	any, this := partNames(f.name, info.Size(), info.ModTime())
	part, from := partName(this), int64(0)
	for name, e := range entries {
		if strings.HasPrefix(name, this) && e.regular() && e.size <= info.Size() && e.size >= from {
			part, from = name, e.size
		}
	}
	c.count(func(p *CopyProgress) { p.TotalBytes -= from })
	far := c.joinFar(dir, part)
	u := &upload{copying: c.copying, file: file, name: f.path, far: far, size: info.Size(), mode: protocol.OpenUpdate}
	if err := u.run(from); err != nil {
		if errors.Is(err, errShrunk) {
			_ = c.ask(protocol.MethodRemove, c.removal(far)) // the first error counts
		}
		return err
	}
	described := make(chan error, 1)
	err := c.follow(protocol.MethodSetMetadata, c.describe(far, info), nil, func(_ answer, err error) { described <- err })
	if err == nil {
		err = c.rename(far, f.far, link)
	}
	if err == nil {
		err = <-described
		if isNotExist(err) { // over a broken connection, the request was repeated after the rename
			err = c.ask(protocol.MethodSetMetadata, c.describe(f.far, info))
		}
	}
	if err != nil {
		return err
	}
	for name := range entries { // of versions that nobody will continue
		if strings.HasPrefix(name, any) && name != part {
			_ = c.ask(protocol.MethodRemove, c.removal(c.joinFar(dir, name)))
		}
	}
	return nil
}

// removal returns the request that removes a file.
func (c *copyIn) removal(far string) protocol.RemoveParams {
	return protocol.RemoveParams{Path: c.link.machine.uri(far), Force: true, FollowSymlinks: !c.free}
}

// rename moves a complete file to its name, perhaps in the place of a link.
func (c *copyIn) rename(from, to string, link bool) error {
	params := protocol.RenameParams{SourcePath: c.link.machine.uri(from), DestinationPath: c.link.machine.uri(to), FollowSymlinks: !c.free || link}
	for broken := false; ; broken = true {
		_, err := c.link.try(c.ctx, protocol.MethodRename, params)
		switch {
		case broken && isNotExist(err):
			return nil // by the request before
		case !errors.As(err, new(*brokenError)):
			return err
		}
	}
}
