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
	"syscall"
)

// WriteOptions are the options of WriteFile.
type WriteOptions struct {
	Links Links

	// Mode, if not nil, becomes the file's permission bits, whatever the umask.
	// Otherwise an existing file keeps its own and a new one gets 0666 minus
	// the umask.
	Mode *fs.FileMode

	// ExpectedSHA256, if not empty, is the hash of the old content in hex.
	// If the file has any other, or is missing, nothing is written and the
	// error is a *ChangedError. Writers that use it do not overtake each other.
	ExpectedSHA256 string

	// Durable waits until the content is on disk.
	Durable bool

	// InPlace, if not nil, is called before the first byte of a file is written
	// in place, and the function that it returns after the last. In between the
	// end of the context does not count.
	InPlace func() (done func())
}

// ChangedError says that a file is not what the writer believed it to be.
type ChangedError struct {
	Want string // hash of the content that was expected
	Got  string // hash of the content there is; "" if there is no file
}

func (e *ChangedError) Error() string {
	if e.Got == "" {
		return "file has changed: it does not exist, expected sha256 " + e.Want
	}
	return "file has changed: sha256 is " + e.Got + ", expected " + e.Want
}

// WriteError says that writing failed half way, and what that did to a file
// that was there before.
type WriteError struct {
	Path      string
	Err       error
	Unchanged bool // the old content is still there, whole
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

// WriteFile makes data the content of a file, creating it if need be. A link
// is written through, a dangling one creates its target.
//
// On Linux the content changes at once or not at all: it is written beside the
// file and renamed over it, with the owner, mode and extended attributes of
// the old file. Where a rename would change more than the content, the file is
// written in place, after making room for the content where the file system
// can: if the file has other names (hard links), is a mount point, belongs to
// someone whose file we cannot make, or lies in a directory where we may not
// create files. Elsewhere than on Linux files are always written in place.
// A file that is written in place is not left torn when the context ends: after
// the first byte the write goes on, for ten minutes at most.
//
// Character devices are written to; any other special file is refused.
func WriteFile(ctx context.Context, path string, data []byte, options WriteOptions) error {
	return writeContent(ctx, path, content{
		size: int64(len(data)),
		writeTo: func(ctx context.Context, f *os.File) (int64, error) {
			return writeBlocks(ctx, f, data)
		},
	}, options)
}

// content is what a file is to hold. writeTo writes it to the start of a file,
// which it leaves as long as the content or longer, and returns that length. It
// may be called again with another file and then starts over.
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

// writeBlocks writes data in few large pieces, looking at the context between.
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

// syncFile waits until what was written to a file or directory is on disk. Some
// files are never, and say EINVAL.
func syncFile(f *os.File) error {
	if err := fsync(f); err != nil && !errors.Is(err, syscall.EINVAL) {
		return cause(err)
	}
	return nil
}

// For tests, which cannot see what is on disk.
var fsync = (*os.File).Sync

// copyBlock is how much is written between two looks at the context.
const copyBlock = 8 << 20

// hashSlice is how much is hashed before others get the processor. The scheduler
// would let them wait for 10 ms for each that hashes.
const hashSlice = 256 << 10

// checkExpected compares the hash of what f holds with the expected one.
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

// permissions is a file mode as system calls have it.
func permissions(mode fs.FileMode) uint32 {
	bits := uint32(mode.Perm())
	for _, b := range []struct {
		mode fs.FileMode
		bit  uint32
	}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}} {
		if mode&b.mode != 0 {
			bits |= b.bit
		}
	}
	return bits
}
