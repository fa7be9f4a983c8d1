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
	// MaxHandles is how many files one Handles holds open, with those being opened.
	MaxHandles = 128
	// MaxBlock is the size of the largest block that is read or written at once.
	MaxBlock = 1 << 20

	maxHandleID = 32 // bytes
)

// Handles are the open files of one connection, under ids that its peer chooses. The zero
// value is ready to use. Blocks are read and written at explicit offsets, in any order,
// and concurrently. A caller that needs an order must keep it. Close releases everything.
type Handles struct {
	// Durable makes CloseHandle wait until the written blocks are on disk. Set it before
	// the first use.
	Durable bool

	// Admit, if not nil, is called before a file is opened, and its error refuses the file.
	// Handles calls release when the handle is gone. Neither may block, or call Handles. Set
	// it before the first use.
	Admit func() (release func(), err error)

	mu     sync.Mutex // guards the fields below; never held during I/O
	open   map[string]*handle
	closed bool
}

type handle struct {
	mode  HandleMode
	leave func()        // see Handles.Admit
	ready chan struct{} // closed when f or err is set
	f     *os.File
	err   error
}

// errHandlesClosed reports that the connection is gone.
var errHandlesClosed = errors.New("file handles are closed")

// OpenWith opens a regular file under an id. opener opens the file.
func (h *Handles) OpenWith(ctx context.Context, id, path string, mode HandleMode, opener Opener) error {
	if err := checkHandleID(id); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	mine, err := h.reserve(id, mode)
	if err != nil {
		return err
	}
	f, err := opener(ctx, path, mode)
	mine.f, mine.err = f, err
	close(mine.ready)

	h.mu.Lock()
	current := h.open[id] == mine
	if err != nil && current {
		h.removeLocked(id)
	}
	h.mu.Unlock()
	if err == nil && !current { // the handle was closed while the file was being opened
		f.Close()
		return &UnknownHandleError{ID: id}
	}
	return err
}

func (h *Handles) reserve(id string, mode HandleMode) (*handle, error) {
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
	mine := &handle{mode: mode, leave: func() {}, ready: make(chan struct{})}
	if h.Admit != nil {
		leave, err := h.Admit()
		if err != nil {
			return nil, err
		}
		mine.leave = leave
	}
	h.open[id] = mine
	return mine, nil
}

// removeLocked removes and returns the handle with an id, or nil.
func (h *Handles) removeLocked(id string) *handle {
	found := h.open[id]
	if found != nil {
		delete(h.open, id)
		found.leave()
	}
	return found
}

// get returns the handle with an id. It waits while the file is being opened.
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

// ReadBlock reads up to length bytes at offset. If it returns fewer, it reports the end of
// the file. It uses buf if that is large enough, and a new slice otherwise; either way the
// caller owns the result. A failure closes the handle, a refused length does not.
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

// WriteBlock writes a block at offset. Gaps read as zeros. The handle stays open after an
// error.
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
	if found.mode == HandleRead {
		return pathError("write", id, syscall.EBADF)
	}
	_, err = found.f.WriteAt(block, int64(offset))
	if errors.Is(err, os.ErrClosed) {
		return &UnknownHandleError{ID: id}
	}
	return pathError("write", id, err)
}

// CloseHandle closes a handle. It succeeds if no handle is open under the id. The error
// is that of the file system for data that it had accepted.
func (h *Handles) CloseHandle(id string) error {
	if err := checkHandleID(id); err != nil {
		return err
	}
	h.mu.Lock()
	found := h.removeLocked(id)
	h.mu.Unlock()
	if found == nil {
		return nil
	}
	var err error
	if h.Durable && found.mode != HandleRead {
		err = found.sync()
	}
	return pathError("close", id, errors.Join(err, found.close()))
}

func (h *Handles) drop(id string, mine *handle) {
	h.mu.Lock()
	if h.open[id] == mine {
		h.removeLocked(id)
	}
	h.mu.Unlock()
	mine.close()
}

// sync waits until the written blocks are on disk.
func (h *handle) sync() error {
	<-h.ready
	if h.f == nil {
		return nil
	}
	return syncFile(h.f)
}

// close closes the file of a handle that is no longer in the table. If the file is still being
// opened, OpenWith closes it, when it finds that the handle has left the table.
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

// Close closes every handle and refuses new ones. It lets reads and writes in progress
// finish.
func (h *Handles) Close() {
	h.mu.Lock()
	open := h.open
	h.open, h.closed = nil, true
	h.mu.Unlock()
	for _, handle := range open {
		handle.leave()
		handle.close()
	}
}

func checkHandleID(id string) error {
	if len(id) > maxHandleID {
		return &Refusal{fmt.Sprintf("file handle ID must not exceed %d bytes", maxHandleID)}
	}
	return nil
}
