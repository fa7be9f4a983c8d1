package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"syscall"
)

var errIsDirectory error = syscall.EISDIR

// readAhead is how many blocks are requested at a time while a file is copied.
const readAhead = 4

// openFile is a regular file that is open for reading. Its methods may be called
// concurrently, except Read, Seek and WriteTo.
type openFile struct {
	ctx    context.Context
	name   string
	info   *fileInfo
	blocks blocks

	offset int64  // of the next byte for Read
	block  []byte // bytes that Read has already, from offset on
	last   bool   // the file ends with block
	once   sync.Once
	closed bool
}

func (f *openFile) error(op string, err error) error {
	if err == nil || err == io.EOF { //nolint:errorlint // io.Reader wants it bare
		return err
	}
	return &fs.PathError{Op: op, Path: f.name, Err: err}
}

// Stat implements fs.File. It describes the file at the time of opening.
func (f *openFile) Stat() (fs.FileInfo, error) { return f.info, nil }

// Read implements io.Reader.
func (f *openFile) Read(b []byte) (int, error) {
	if f.closed {
		return 0, f.error("read", fs.ErrClosed)
	}
	if len(b) == 0 {
		return 0, nil
	}
	if len(f.block) == 0 {
		if f.last {
			return 0, io.EOF
		}
		block, eof, err := f.blocks.readBlock(f.ctx, f.offset, maxBlock)
		if err != nil {
			return 0, f.error("read", err)
		}
		f.block, f.last = block, eof
		if len(block) == 0 {
			return 0, io.EOF
		}
	}
	n := copy(b, f.block)
	f.block = f.block[n:]
	f.offset += int64(n)
	return n, nil
}

// ReadAt implements io.ReaderAt.
func (f *openFile) ReadAt(b []byte, offset int64) (n int, err error) {
	if offset < 0 {
		return 0, f.error("read", fs.ErrInvalid)
	}
	for n < len(b) {
		block, eof, err := f.blocks.readBlock(f.ctx, offset+int64(n), min(len(b)-n, maxBlock))
		if err != nil {
			return n, f.error("read", err)
		}
		n += copy(b[n:], block)
		if eof && n < len(b) {
			return n, io.EOF
		}
	}
	return n, nil
}

// Seek implements io.Seeker. The end is that at the time of opening.
func (f *openFile) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += f.offset
	case io.SeekEnd:
		offset += f.info.Size()
	}
	if f.closed {
		return 0, f.error("seek", fs.ErrClosed)
	}
	if offset < 0 || whence < io.SeekStart || whence > io.SeekEnd {
		return 0, f.error("seek", fs.ErrInvalid)
	}
	if offset != f.offset {
		f.offset, f.block, f.last = offset, nil, false
	}
	return offset, nil
}

// WriteTo implements io.WriterTo, with several blocks requested at a time.
func (f *openFile) WriteTo(w io.Writer) (total int64, err error) {
	if f.closed {
		return 0, f.error("read", fs.ErrClosed)
	}
	ctx, cancel := context.WithCancel(f.ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	type result struct {
		block []byte
		eof   bool
		err   error
	}
	var coming []chan result
	next := f.offset + int64(len(f.block))
	fetch := func() {
		offset, c := next, make(chan result, 1)
		next += maxBlock
		coming = append(coming, c)
		wg.Go(func() {
			block, eof, err := f.blocks.readBlock(ctx, offset, maxBlock)
			c <- result{block, eof, err}
		})
	}
	for {
		n, err := w.Write(f.block)
		total += int64(n)
		f.offset += int64(n)
		f.block = f.block[n:]
		if err != nil || f.last {
			return total, err
		}
		for len(coming) < readAhead {
			fetch()
		}
		r := <-coming[0]
		coming = coming[1:]
		if r.err != nil {
			return total, f.error("read", r.err)
		}
		if f.block, f.last = r.block, r.eof; len(r.block) < maxBlock && !r.eof {
			// The blocks that follow are not those that were asked for.
			for _, c := range coming {
				<-c
			}
			coming, next = nil, f.offset+int64(len(r.block))
		}
	}
}

// Close implements io.Closer.
func (f *openFile) Close() error {
	err := f.error("close", fs.ErrClosed)
	f.once.Do(func() {
		f.closed = true
		err = f.error("close", f.blocks.close(f.ctx))
	})
	return err
}

// wholeFile is the content of a file that could only be read whole.
type wholeFile []byte

func (w wholeFile) readBlock(_ context.Context, offset int64, n int) ([]byte, bool, error) {
	rest := w[min(offset, int64(len(w))):]
	return rest[:min(n, len(rest))], len(rest) < n, nil
}

func (w wholeFile) writeBlock(context.Context, int64, []byte) error { return fs.ErrInvalid }

func (w wholeFile) close(context.Context) error { return nil }

// fileWriter writes a file block by block.
type fileWriter struct {
	ctx    context.Context
	name   string
	blocks blocks
	offset int64 // of buf
	buf    []byte
	err    error // the first error; nothing is written after it
	closed bool
}

func (w *fileWriter) fail(op string, err error) error {
	if err != nil && w.err == nil {
		w.err = &fs.PathError{Op: op, Path: w.name, Err: err}
	}
	return w.err
}

// Write implements io.Writer.
func (w *fileWriter) Write(b []byte) (n int, err error) {
	if w.closed {
		return 0, &fs.PathError{Op: "write", Path: w.name, Err: fs.ErrClosed}
	}
	for len(b) > 0 && w.err == nil {
		k := min(len(b), maxBlock-len(w.buf))
		w.buf = append(w.buf, b[:k]...)
		if len(w.buf) == maxBlock {
			w.flush()
		}
		if w.err == nil { // after an error the state of the block is unknown
			b, n = b[k:], n+k
		}
	}
	return n, w.err
}

func (w *fileWriter) flush() {
	if len(w.buf) == 0 || w.err != nil {
		return
	}
	_ = w.fail("write", w.blocks.writeBlock(w.ctx, w.offset, w.buf))
	w.offset += int64(len(w.buf))
	w.buf = w.buf[:0]
}

// Close implements io.Closer. It writes the rest.
func (w *fileWriter) Close() error {
	if w.closed {
		return &fs.PathError{Op: "close", Path: w.name, Err: fs.ErrClosed}
	}
	w.flush()
	w.closed = true
	return w.fail("close", w.blocks.close(w.ctx))
}

// maxWhole bounds the size of a file that must be written whole.
const maxWhole = 48 << 20

// wholeWriter collects a file for servers that only write files whole.
type wholeWriter struct {
	fs           *FS
	name, osPath string
	buf          []byte
	closed       bool
}

// Write implements io.Writer.
func (w *wholeWriter) Write(b []byte) (int, error) {
	err := error(nil)
	switch {
	case w.closed:
		err = fs.ErrClosed
	case len(w.buf)+len(b) > maxWhole:
		err = fmt.Errorf("the server takes files of up to %d bytes: %w", maxWhole, &UnsupportedError{"write a large file", capFileWriting})
	}
	if err != nil {
		return 0, &fs.PathError{Op: "write", Path: w.name, Err: err}
	}
	w.buf = append(w.buf, b...)
	return len(b), nil
}

// Close implements io.Closer.
func (w *wholeWriter) Close() error {
	if w.closed {
		return &fs.PathError{Op: "close", Path: w.name, Err: fs.ErrClosed}
	}
	w.closed = true
	return w.fs.WriteFile(w.name, w.buf)
}

// errChanged says that a file changed while the connection was lost, so reading cannot
// continue.
var errChanged = errors.New("the file changed while the connection was lost")
