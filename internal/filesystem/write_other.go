//go:build !linux

package filesystem

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// CanReplace reports whether WriteOptions.Replace works on this system.
const CanReplace = false

func replaceContent(ctx context.Context, path string, c content, options WriteOptions) error {
	if err := guard(path, options.Links); err != nil {
		return err
	}
	if options.Replace {
		return &Refusal{"this system cannot replace a file; write it without replace"}
	}
	stat := os.Stat
	if options.Links == NoFollow {
		stat = os.Lstat
	}
	flags := os.O_WRONLY | syscall.O_NONBLOCK
	info, err := stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if want := options.ExpectedSHA256; want != "" {
			return &ChangedError{Want: want}
		}
		flags |= os.O_CREATE
	case err != nil:
		return pathError("open", path, err)
	case isLink(info.Mode()):
		return pathError("open", path, syscall.ELOOP)
	case info.IsDir():
		return pathError("open", path, syscall.EISDIR)
	case info.Mode()&fs.ModeSocket != 0:
		return pathError("open", path, syscall.ENXIO)
	case !info.Mode().IsRegular() && info.Mode()&fs.ModeCharDevice == 0:
		return refuseNotFile(path, options.Links)
	}
	if err == nil && info.Mode().IsRegular() {
		key, ok := fileID(path)
		if !ok {
			return pathError("stat", path, syscall.ENOENT)
		}
		unlock, err := writeLocks.lock(ctx, key) // the key stays valid: writing does not replace the file
		if err != nil {
			return err
		}
		defer unlock()
	}
	if want := options.ExpectedSHA256; want != "" {
		old, err := os.Open(path)
		if err != nil {
			return pathError("open", path, err)
		}
		err = checkExpected(ctx, old, want)
		old.Close()
		if err != nil {
			return err
		}
	}
	f, err := os.OpenFile(path, flags, 0o666)
	if err != nil {
		return pathError("open", path, err)
	}
	var n int64
	ctx, end, err := options.beginInPlace(ctx)
	if err == nil {
		defer end()
		n, err = c.writeTo(ctx, f)
	}
	if err == nil && (info == nil || info.Mode().IsRegular()) {
		err = finish(f, n, options)
	}
	err = errors.Join(err, f.Close())
	if err == nil && options.Modified != nil { // Windows sets the time when it closes the file
		err = os.Chtimes(path, time.Time{}, *options.Modified)
	}
	if err == nil {
		return nil
	}
	if info == nil {
		os.Remove(path)
		return &WriteError{Path: path, Err: cause(err)}
	}
	return &WriteError{Path: path, Err: cause(err), Unchanged: n == 0, Partial: n > 0}
}

func finish(f *os.File, size int64, options WriteOptions) error {
	if err := f.Truncate(size); err != nil {
		return err
	}
	if options.Mode != nil {
		if err := f.Chmod(*options.Mode); err != nil {
			return err
		}
	}
	if options.Durable {
		return syncFile(f)
	}
	return nil
}
