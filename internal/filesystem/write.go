package filesystem

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// WriteOptions are the options of WriteFile.
type WriteOptions struct {
	Links Links

	// Mode, if not nil, is the file's new permission bits, whatever the umask. Otherwise
	// an existing file keeps its own, and a new one gets 0666 minus the umask.
	Mode *fs.FileMode

	// Modified, if not nil, is the file's new modification time.
	Modified *time.Time

	// ExpectedSHA256, if not empty, is the hex hash that the old content must have. If
	// the file has another hash or is missing, nothing is written and the error is a
	// *ChangedError. Writers that use this option do not overtake each other.
	ExpectedSHA256 string

	// Replace replaces an existing file with a new one by rename, even if the old file can
	// be written.
	Replace bool

	// Replaced, if not nil, is called after a new file has replaced an existing one.
	Replaced func()

	// Durable waits until the content is on disk.
	Durable bool

	// InPlace, if not nil, is called before the first byte of a file is written in place;
	// the function that it returns is called after the last. In between, the end of the
	// context does not stop the write.
	InPlace func() (done func())
}

// ChangedError reports that a file does not have the content that the writer expected.
type ChangedError struct {
	Want string // hash of the expected content
	Got  string // hash of the current content; "" if there is no file
}

func (e *ChangedError) Error() string {
	if e.Got == "" {
		return "file has changed: it does not exist, expected sha256 " + e.Want
	}
	return "file has changed: sha256 is " + e.Got + ", expected " + e.Want
}

// WriteError reports that writing failed half way, and the state of the old file.
type WriteError struct {
	Path      string
	Err       error
	Unchanged bool // the old content is intact
	Partial   bool // the file holds a part of the new content
}

func (e *WriteError) Error() string { return "write " + e.Path + ": " + e.Err.Error() + e.outcome() }
func (e *WriteError) Unwrap() error { return e.Err }

func (e *WriteError) outcome() string {
	switch {
	case e.Unchanged:
		return "; the file keeps its old content"
	case e.Partial:
		return "; the file is partly written"
	}
	return ""
}

// WriteFile makes data the content of a file, and creates the file if necessary. It
// writes through a link; a dangling link creates its target.
//
// An existing file is written in place and stays the same file, with its owner, mode, links
// and attributes: programs that have it open, watch it or mount it see the new content. On
// Linux WriteFile reserves disk space first where the file system can, so that a full disk
// changes nothing. A write does not leave a torn file when the context ends: after the first
// byte it continues, for at most ten minutes. A new file on Linux appears whole or not at all.
//
// With the option Replace, which needs Linux, WriteFile writes a new file with the owner, the
// mode and the extended attributes of the old one, and renames it over that. The caller must
// be allowed to write the old file as well. The kernel does not let the file of a running
// program be written, so WriteFile replaces that too, unless it has other names.
//
// WriteFile writes to character devices and refuses any other special file.
func WriteFile(ctx context.Context, path string, data []byte, options WriteOptions) error {
	return writeContent(ctx, path, content{
		size: int64(len(data)),
		writeTo: func(ctx context.Context, f *os.File) (int64, error) {
			return writeBlocks(ctx, f, data)
		},
	}, options)
}

// content is the new content of a file. writeTo writes it to the start of a file that is
// as long as the content or longer, and returns the length of the content. It may be
// called again with another file, and then starts over.
type content struct {
	size    int64 // 0 if unknown
	writeTo func(ctx context.Context, f *os.File) (int64, error)
}

func writeContent(ctx context.Context, path string, c content, options WriteOptions) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	options.ExpectedSHA256 = strings.ToLower(options.ExpectedSHA256)
	if want := options.ExpectedSHA256; want != "" {
		if raw, err := hex.DecodeString(want); err != nil || len(raw) != sha256.Size {
			return &Refusal{fmt.Sprintf("expected sha256 must be %d hex digits", 2*sha256.Size)}
		}
	}
	return replaceContent(ctx, path, c, options)
}

// writeBlocks writes data in a few large pieces and checks the context in between.
func writeBlocks(ctx context.Context, f *os.File, data []byte) (int64, error) {
	var total int64
	for len(data) > 0 {
		if ctx.Err() != nil {
			return total, context.Cause(ctx)
		}
		n, err := f.Write(data[:min(len(data), copyBlock)])
		total += int64(n)
		if err != nil {
			return total, cause(err)
		}
		data = data[n:]
	}
	return total, nil
}

// inPlaceTimeout bounds how long a change in place continues after its context has ended.
// Only a change that would never end takes as long, such as a copy of a file that grows
// as quickly as it is read.
const inPlaceTimeout = 10 * time.Minute

// beginInPlace must be called before the first byte of a visible file changes. If the client
// disconnected in the middle, the file would stay torn without an error. So the change
// continues with the returned context, which outlives ctx. The caller must call end after
// the last byte.
func (o WriteOptions) beginInPlace(ctx context.Context) (lasting context.Context, end func(), err error) {
	done := func() {}
	if o.InPlace != nil {
		done = o.InPlace()
	}
	if ctx.Err() != nil { // checked last, so that a caller that ended ctx sees the change as begun
		done()
		return nil, nil, context.Cause(ctx)
	}
	lasting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(inPlaceTimeout):
			cancel(context.Cause(ctx))
		case <-lasting.Done():
		}
	})
	return lasting, func() {
		stop()
		cancel(nil)
		done()
	}, nil
}

// writeLocks serializes the writers of a file. No other writer may come between the check of
// the old content and the write; and a write that outlives its connection must not mix with
// that of the client's next connection. A lock is for a file, which may have several names, or,
// for conditional writers, for a name, which may refer to another file after each write. A
// writer locks its name first, then the file, and holds both during I/O: a file system that
// hangs blocks the writers of the same file.
var writeLocks = keyedMutex{locks: map[any]*keyedLock{}}

type keyedMutex struct {
	mu    sync.Mutex // guards locks and their users
	locks map[any]*keyedLock
}

type keyedLock struct {
	busy  chan struct{} // holds one element while the key is locked
	users int
}

// lock locks the mutex of a key.
func (t *keyedMutex) lock(ctx context.Context, key any) (unlock func(), err error) {
	t.mu.Lock()
	mine := t.locks[key]
	if mine == nil {
		mine = &keyedLock{busy: make(chan struct{}, 1)}
		t.locks[key] = mine
	}
	mine.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if mine.users--; mine.users == 0 {
			delete(t.locks, key)
		}
	}
	select {
	case mine.busy <- struct{}{}:
		return func() { <-mine.busy; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}

// syncFile waits until the content of a file or directory is on disk. It ignores EINVAL,
// which files return that are never on disk.
func syncFile(f *os.File) error {
	if err := fsync(f); err != nil && !errors.Is(err, syscall.EINVAL) {
		return cause(err)
	}
	return nil
}

// Tests replace fsync, because they cannot see whether content is on disk.
var fsync = (*os.File).Sync

// copyBlock is how many bytes are written between two checks of the context.
const copyBlock = 8 << 20

// hashSlice is how many bytes are hashed before other goroutines get the processor. The
// scheduler alone would let them wait for 10 ms for each goroutine that hashes.
const hashSlice = 256 << 10

// checkExpected compares the hash of the content of f with the expected one.
func checkExpected(ctx context.Context, f io.Reader, want string) error {
	h := sha256.New()
	for buf := make([]byte, hashSlice); ; runtime.Gosched() {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := f.Read(buf)
		h.Write(buf[:n])
		if err == io.EOF {
			break
		}
		if err != nil {
			return cause(err)
		}
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return &ChangedError{Want: want, Got: got}
	}
	return nil
}
