package filesystem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sync"
	"syscall"
)

const (
	// MaxHandles is how many files one Handles holds open, being opened included.
	MaxHandles = 128
	// MaxBlock is the largest block that is read or written at once.
	MaxBlock = 1 << 20

	maxHandleID = 32 // bytes
)

// HandleMode says what a handle is for.
type HandleMode int

const (
	// HandleRead reads a regular file.
	HandleRead HandleMode = iota
	// HandleReplace creates a file, or empties it at once, and writes it.
	HandleReplace
)

// Handles are the open files of one connection, under ids that its peer
// chooses. The zero value is ready to use. Blocks are read and written at
// explicit offsets, in any order, also concurrently; who wants an order keeps
// it. Close releases everything.
type Handles struct {
	// Durable makes CloseHandle wait until what was written is on disk. Set it
	// before the first use.
	Durable bool

	mu     sync.Mutex // guards the fields below; never held during I/O
	open   map[string]*handle
	closed bool
}

type handle struct {
	path  string // that was asked for
	mode  HandleMode
	ready chan struct{} // closed when f or err is set
	f     *os.File
	err   error
}

// errHandlesClosed is what is left to say when the connection is gone.
var errHandlesClosed = errors.New("file handles are closed")

// Opener opens a regular file. It never waits for another process.
type Opener func(ctx context.Context, path string, mode HandleMode) (*os.File, error)

// OpenFile is the Opener that Open uses.
func OpenFile(_ context.Context, path string, mode HandleMode) (f *os.File, err error) {
	if mode == HandleRead {
		f, _, err = openRegular(path, Follow)
		return f, err
	}
	return openReplacement(path)
}

// OpenNoFollow opens a regular file to read it, as Open does with [NoFollow].
func OpenNoFollow(path string) (*os.File, error) {
	f, _, err := openRegular(path, NoFollow)
	return f, err
}

// Open opens a regular file under an id.
func (h *Handles) Open(ctx context.Context, id, path string, mode HandleMode) error {
	return h.OpenWith(ctx, id, path, mode, OpenFile)
}

// OpenWith is Open for a file that somebody else opens.
func (h *Handles) OpenWith(ctx context.Context, id, path string, mode HandleMode, opener Opener) error {
	if err := checkHandleID(id); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	mine, err := h.reserve(id, path, mode)
	if err != nil {
		return err
	}
	f, err := opener(ctx, path, mode)
	mine.f, mine.err = f, err
	close(mine.ready)

	h.mu.Lock()
	current := h.open[id] == mine
	if err != nil && current {
		delete(h.open, id)
	}
	h.mu.Unlock()
	if err == nil && !current { // closed while it was being opened
		f.Close()
		return &UnknownHandleError{ID: id}
	}
	return err
}

func (h *Handles) reserve(id, path string, mode HandleMode) (*handle, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, errHandlesClosed
	case h.open[id] != nil:
		return nil, &Refusal{"file handle `" + id + "` already exists"}
	case len(h.open) >= MaxHandles:
		return nil, &Refusal{fmt.Sprintf("at most %d file handles may be open per connection", MaxHandles)}
	}
	if h.open == nil {
		h.open = map[string]*handle{}
	}
	mine := &handle{path: path, mode: mode, ready: make(chan struct{})}
	h.open[id] = mine
	return mine, nil
}

// Path returns the path that was opened under an id. It reports false if no
// file is open under it, or about to be.
func (h *Handles) Path(id string) (path string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if found := h.open[id]; found != nil {
		return found.path, true
	}
	return "", false
}

// get returns the handle with an id, waiting for it if it is being opened.
func (h *Handles) get(ctx context.Context, id string) (*handle, error) {
	h.mu.Lock()
	found := h.open[id]
	h.mu.Unlock()
	if found == nil {
		return nil, &UnknownHandleError{ID: id}
	}
	select {
	case <-found.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if found.err != nil {
		return nil, &UnknownHandleError{ID: id}
	}
	return found, nil
}

// ReadBlock reads up to length bytes at offset and reports whether the file
// ends there: if fewer came back. It uses buf if that is large enough, and a
// new slice otherwise; either way the result is the caller's. A failure closes
// the handle, a refused length does not.
func (h *Handles) ReadBlock(ctx context.Context, id string, offset, length uint64, buf []byte) (block []byte, eof bool, err error) {
	if err := checkHandleID(id); err != nil {
		return nil, false, err
	}
	if length < 1 || length > MaxBlock {
		return nil, false, &Refusal{fmt.Sprintf("file read block length must be between 1 and %d", MaxBlock)}
	}
	found, err := h.get(ctx, id)
	if err != nil {
		return nil, false, err
	}
	n := 0
	block = slices.Grow(buf[:0], int(length))[:length]
	switch {
	case found.mode != HandleRead:
		err = syscall.EBADF
	case offset > math.MaxInt64-length:
		err = syscall.EINVAL
	default:
		n, err = found.f.ReadAt(block, int64(offset))
	}
	switch {
	case err == nil:
		return block, false, nil
	case err == io.EOF || errors.Is(err, syscall.EAGAIN):
		return block[:n], true, nil
	case errors.Is(err, os.ErrClosed):
		return nil, false, &UnknownHandleError{ID: id}
	}
	h.drop(id, found)
	return nil, false, pathError("read", id, err)
}

// WriteBlock writes a block at offset. Gaps read as zeros. The handle survives
// a failure.
func (h *Handles) WriteBlock(ctx context.Context, id string, offset uint64, block []byte) error {
	if err := checkHandleID(id); err != nil {
		return err
	}
	if len(block) < 1 || len(block) > MaxBlock {
		return &Refusal{fmt.Sprintf("file write block length must be between 1 and %d", MaxBlock)}
	}
	if offset > math.MaxInt64-uint64(len(block)) {
		return &Refusal{"file write range exceeds the signed 64-bit file offset limit"}
	}
	found, err := h.get(ctx, id)
	if err != nil {
		return err
	}
	if found.mode != HandleReplace {
		return pathError("write", id, syscall.EBADF)
	}
	_, err = found.f.WriteAt(block, int64(offset))
	if errors.Is(err, os.ErrClosed) {
		return &UnknownHandleError{ID: id}
	}
	return pathError("write", id, err)
}

// CloseHandle closes a handle. One that is not open is closed already. The
// error is that of the file system for data it had accepted.
func (h *Handles) CloseHandle(id string) error {
	if err := checkHandleID(id); err != nil {
		return err
	}
	h.mu.Lock()
	found := h.open[id]
	delete(h.open, id)
	h.mu.Unlock()
	if found == nil {
		return nil
	}
	var err error
	if h.Durable && found.mode == HandleReplace {
		err = found.sync()
	}
	return pathError("close", id, errors.Join(err, found.close()))
}

func (h *Handles) drop(id string, mine *handle) {
	h.mu.Lock()
	if h.open[id] == mine {
		delete(h.open, id)
	}
	h.mu.Unlock()
	mine.close()
}

// sync waits until what was written is on disk.
func (h *handle) sync() error {
	<-h.ready
	if h.f == nil {
		return nil
	}
	return syncFile(h.f)
}

// close closes the file of a handle that is no longer in the table. While it
// is still being opened that is left to Open, which will not find it there.
func (h *handle) close() error {
	select {
	case <-h.ready:
	default:
		return nil
	}
	if h.f == nil {
		return nil
	}
	if err := h.f.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// Close closes every handle, for good. Blocks being read or written finish.
func (h *Handles) Close() {
	h.mu.Lock()
	open := h.open
	h.open, h.closed = nil, true
	h.mu.Unlock()
	for _, handle := range open {
		handle.close()
	}
}

func checkHandleID(id string) error {
	if len(id) > maxHandleID {
		return &Refusal{fmt.Sprintf("file handle ID must not exceed %d bytes", maxHandleID)}
	}
	return nil
}
