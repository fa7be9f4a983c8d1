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

// TestFileErrorCodes holds the codes and texts of errors of the file system to
// what clients know. Package filesystem makes each of them happen.
func TestFileErrorCodes(t *testing.T) {
	for errno, want := range map[syscall.Errno]struct {
		code protocol.Code
		text string
	}{
		syscall.ENOENT:       {-32004, "No such file or directory"},
		syscall.EPERM:        {-32600, "Operation not permitted"},
		syscall.EACCES:       {-32600, "Permission denied"},
		syscall.EINVAL:       {-32600, "Invalid argument"},
		syscall.EEXIST:       {-32603, "File exists"},
		syscall.ENOTDIR:      {-32603, "Not a directory"},
		syscall.EISDIR:       {-32603, "Is a directory"},
		syscall.ENOTEMPTY:    {-32603, "Directory not empty"},
		syscall.ELOOP:        {-32603, "Symbolic link loop"},
		syscall.ENAMETOOLONG: {-32603, "Filename too long"},
		syscall.ENOSPC:       {-32603, "No space left on device"},
		syscall.EIO:          {-32603, "I/O error"},
		syscall.EBUSY:        {-32603, "Resource busy"},
		syscall.ETXTBSY:      {-32603, "Text file busy"},
		syscall.EROFS:        {-32603, "Read-only file system"},
		syscall.ENXIO:        {-32603, "No such device or address"},
		syscall.EBADF:        {-32603, "Bad file descriptor"},
		syscall.EXDEV:        {-32603, "Cross-device link"},
	} {
		err := fmt.Errorf("around it: %w", &fs.PathError{Op: "open", Path: "/x", Err: errno})
		want.text += fmt.Sprintf(" (os error %d)", int(errno))
		if got := protocol.AsError(server.FileError(err)); got.Code != want.code || got.Message != want.text {
			t.Errorf("%v: %d %q, want %d %q", errno, got.Code, got.Message, want.code, want.text)
		}
		written := &filesystem.WriteError{Err: err, Unchanged: true}
		want.text += "; the file keeps its old content"
		if got := protocol.AsError(server.FileError(written)); got.Code != want.code || got.Message != want.text {
			t.Errorf("%v: %d %q, want %d %q", errno, got.Code, got.Message, want.code, want.text)
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
