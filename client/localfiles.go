package client

import (
	"context"
	"path/filepath"
	"strconv"
	"sync"
	"unicode/utf8"

	"execserver/filesystem"
	"execserver/protocol"
)

// localFiles are the methods about files of a host, with the errors of a server.
type localFiles struct {
	os      string
	handles filesystem.Handles

	mu   sync.Mutex
	last uint64
}

// fail gives an error of the file system the form that a server's has.
func (l *localFiles) fail(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	code := protocol.CodeInternal
	class, text := filesystem.Classify(err)
	switch class {
	case filesystem.NotFound:
		code = protocol.CodeNotFound
	case filesystem.InvalidInput:
		code = protocol.CodeInvalidRequest
	}
	return explain(protocol.Errorf(code, "%s", text), l.os)
}

func (l *localFiles) stat(ctx context.Context, path string) (*protocol.FileMetadata, error) {
	m, err := filesystem.GetMetadata(ctx, path, filesystem.Follow)
	if err != nil {
		return nil, l.fail(ctx, err)
	}
	return &protocol.FileMetadata{
		IsDirectory: m.IsDirectory, IsFile: m.IsFile, IsSymlink: m.IsSymlink, Size: m.Size,
		CreatedAtMs: filesystem.Milliseconds(m.Created), ModifiedAtMs: filesystem.Milliseconds(m.Modified),
	}, nil
}

// readFile has no limit: nothing has to fit into a message.
func (l *localFiles) readFile(ctx context.Context, path string) ([]byte, error) {
	data, err := filesystem.ReadFile(ctx, path, filesystem.ReadOptions{Limit: -1})
	return data, l.fail(ctx, err)
}

// readDir has no limit, as readFile.
func (l *localFiles) readDir(ctx context.Context, path string) (list []protocol.DirectoryEntry, err error) {
	err = filesystem.ReadDirectory(ctx, path, func(e filesystem.DirEntry) bool {
		entry := protocol.DirectoryEntry{FileName: e.Name, IsDirectory: e.IsDirectory, IsFile: e.IsFile}
		if !utf8.ValidString(e.Name) {
			full := protocol.URIPath(filepath.Join(path, e.Name))
			entry.Path = &full
		}
		list = append(list, entry)
		return true
	})
	if err != nil {
		return nil, l.fail(ctx, err)
	}
	return list, nil
}

func (l *localFiles) realPath(ctx context.Context, path string) (string, error) {
	real, err := filesystem.Canonicalize(ctx, path)
	return real, l.fail(ctx, err)
}

func (l *localFiles) writeFile(ctx context.Context, path string, data []byte) error {
	return l.fail(ctx, filesystem.WriteFile(ctx, path, data, filesystem.WriteOptions{}))
}

func (l *localFiles) mkdir(ctx context.Context, path string, all bool) error {
	return l.fail(ctx, filesystem.CreateDirectory(ctx, path, filesystem.CreateDirectoryOptions{Recursive: all}))
}

func (l *localFiles) remove(ctx context.Context, path string, all bool) error {
	return l.fail(ctx, filesystem.Remove(ctx, path, filesystem.RemoveOptions{Recursive: all, Force: all}))
}

func (l *localFiles) copyFile(ctx context.Context, from, to string, all bool) error {
	return l.fail(ctx, filesystem.Copy(ctx, from, to, filesystem.CopyOptions{Recursive: all}))
}

func (l *localFiles) openFile(ctx context.Context, path string, _ *protocol.FileMetadata) (blocks, error) {
	return l.open(ctx, path, filesystem.HandleRead)
}

func (l *localFiles) createFile(ctx context.Context, path string) (blocks, error) {
	return l.open(ctx, path, filesystem.HandleReplace)
}

func (l *localFiles) open(ctx context.Context, path string, mode filesystem.HandleMode) (blocks, error) {
	l.mu.Lock()
	l.last++
	id := strconv.FormatUint(l.last, 10)
	l.mu.Unlock()
	if err := l.handles.Open(ctx, id, path, mode); err != nil {
		return nil, l.fail(ctx, err)
	}
	return &localHandle{l, id}, nil
}

// localHandle is an open file of a host.
type localHandle struct {
	files *localFiles
	id    string
}

func (h *localHandle) readBlock(ctx context.Context, offset int64, n int) ([]byte, bool, error) {
	block, eof, err := h.files.handles.ReadBlock(ctx, h.id, uint64(offset), uint64(n), nil)
	return block, eof, h.files.fail(ctx, err)
}

func (h *localHandle) writeBlock(ctx context.Context, offset int64, block []byte) error {
	return h.files.fail(ctx, h.files.handles.WriteBlock(ctx, h.id, uint64(offset), block))
}

func (h *localHandle) close(ctx context.Context) error {
	return h.files.fail(ctx, h.files.handles.CloseHandle(h.id))
}
