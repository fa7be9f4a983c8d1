//go:build unix

package server_test

import (
	"context"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"execserver/internal/filesystem"
	"execserver/protocol"
	"execserver/server"
)

// TestFileErrorCodes holds the codes of errors of the file system, and the number in their
// texts, to what clients know. Package filesystem makes each of them happen.
func TestFileErrorCodes(t *testing.T) {
	for errno, code := range map[syscall.Errno]protocol.Code{
		syscall.ENOENT:       -32004,
		syscall.EPERM:        -32600,
		syscall.EACCES:       -32600,
		syscall.EINVAL:       -32600,
		syscall.EEXIST:       -32603,
		syscall.ENOTDIR:      -32603,
		syscall.EISDIR:       -32603,
		syscall.ENOTEMPTY:    -32603,
		syscall.ELOOP:        -32603,
		syscall.ENAMETOOLONG: -32603,
		syscall.ENOSPC:       -32603,
		syscall.EIO:          -32603,
		syscall.EBUSY:        -32603,
		syscall.ETXTBSY:      -32603,
		syscall.EROFS:        -32603,
		syscall.ENXIO:        -32603,
		syscall.EBADF:        -32603,
		syscall.EXDEV:        -32603,
	} {
		err := fmt.Errorf("around it: %w", &fs.PathError{Op: "open", Path: "/x", Err: errno})
		text := fmt.Sprintf("%s (os error %d)", errno, int(errno))
		if got := protocol.AsError(server.FileError(err)); got.Code != code || got.Message != text {
			t.Errorf("%v: %d %q, want %d %q", errno, got.Code, got.Message, code, text)
		}
		written := &filesystem.WriteError{Err: err, Unchanged: true}
		text += "; the file keeps its old content"
		if got := protocol.AsError(server.FileError(written)); got.Code != code || got.Message != text {
			t.Errorf("%v: %d %q, want %d %q", errno, got.Code, got.Message, code, text)
		}
	}
	for err, code := range map[error]protocol.Code{
		&filesystem.Refusal{Text: "refused"}:                    -32600,
		&filesystem.TooLargeError{Limit: 1}:                     -32600,
		&filesystem.UnknownHandleError{ID: "h"}:                 -32004,
		&filesystem.ChangedError{Want: "a"}:                     -32005,
		context.Canceled:                                        -32603,
		protocol.Errorf(protocol.CodeInvalidParams, "as it is"): -32602,
	} {
		if got := protocol.AsError(server.FileError(err)); got.Code != code {
			t.Errorf("%v: %d, want %d", err, got.Code, code)
		}
	}
}
