package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"execserver/internal/rpc"
	"execserver/protocol"
)

// The methods about files, over a link.

// query makes a request that may be repeated, and decodes the answer.
func (l *link) query(ctx context.Context, method string, params, result any) error {
	for {
		raw, data, err := l.tryBulk(ctx, method, params)
		switch {
		case err == nil:
			return understandBulk(method, raw, data, result)
		case !errors.As(err, new(*brokenError)):
			return err
		}
	}
}

// understand decodes the answer to a request.
func understand(method string, raw json.RawMessage, result any) error {
	return understandBulk(method, raw, nil, result)
}

// understandBulk is like understand, for an answer that may be binary.
func understandBulk(method string, raw json.RawMessage, data []byte, result any) error {
	if err := protocol.DecodeResult(raw, data, result); err != nil {
		return &answerError{method, err}
	}
	return nil
}

func (l *link) file(path string) protocol.FileParams {
	return protocol.FileParams{Path: l.machine.uri(path), FollowSymlinks: true}
}

// stat describes a file, with details if the server has them.
func (l *link) stat(ctx context.Context, path string) (*protocol.FileMetadata, error) {
	return l.metadata(ctx, path, false)
}

// metadata describes the file at path or, if itself is true, the link there.
func (l *link) metadata(ctx context.Context, path string, itself bool) (*protocol.FileMetadata, error) {
	params := l.file(path)
	params.Details, params.Link = l.env.has(capMetadata), itself
	var meta protocol.FileMetadata
	if err := l.query(ctx, protocol.MethodGetMetadata, params, &meta); err != nil {
		return nil, err
	}
	return &meta, nil
}

func (l *link) readFile(ctx context.Context, path string) ([]byte, error) {
	var result protocol.ReadFileResult
	err := l.query(ctx, protocol.MethodReadFile, l.file(path), &result)
	return result.Data, err
}

// maxListed and maxListedBytes bound what FS.ReadDir returns, because a caller has it in
// memory.
const (
	maxListed      = 1 << 18
	maxListedBytes = 64 << 20
)

func (l *link) readDir(ctx context.Context, path string) (entries []protocol.DirectoryEntry, err error) {
	params := l.listing(path, l.env.has(capMetadata))
	size := 0
	for {
		var page protocol.ReadDirectoryResult
		if err := l.query(ctx, protocol.MethodReadDirectory, params, &page); err != nil {
			return nil, err
		}
		if page.Truncated && page.Next == nil && params.Details {
			// The server has no pages. Without details there is room for more entries.
			params, entries = l.listing(path, false), nil
			continue
		}
		for i, e := range page.Entries {
			name := l.exactName(e)
			if !l.isName(name) {
				return nil, &answerError{protocol.MethodReadDirectory, fmt.Errorf("a file cannot have the name %q", name)}
			}
			page.Entries[i].FileName = name
			size += listedSize(e)
		}
		entries = append(entries, page.Entries...)
		next, err := following(params, &page)
		if err != nil || next == nil {
			return entries, err
		}
		if len(entries) >= maxListed || size >= maxListedBytes {
			return entries, ErrTruncated
		}
		params.After = next
	}
}

// listedSize returns about how much memory an entry of a listing takes.
func listedSize(e protocol.DirectoryEntry) int {
	size := eventBytes + len(e.FileName)
	if e.Path != nil {
		size += len(e.Path.String())
	}
	if e.EntryDetails != nil {
		size += len(e.Text())
	}
	return size
}

// listing asks for a directory, or for its first page, where the server has pages.
func (l *link) listing(path string, details bool) protocol.FileParams {
	params := l.file(path)
	if params.Details = details; details {
		params.After = new("")
	}
	return params
}

// following returns where the page after this one begins, or nil if it is the last.
func following(params protocol.FileParams, page *protocol.ReadDirectoryResult) (*string, error) {
	switch {
	case !page.Truncated:
		return nil, nil
	case params.After == nil, page.Next == nil:
		return nil, ErrTruncated // the server has no pages
	case len(page.Entries) == 0 || *page.Next == *params.After:
		return nil, &answerError{protocol.MethodReadDirectory, errors.New("the next page is the same one")}
	}
	return page.Next, nil
}

// isName reports whether a file in a directory can have the name. A program may join names
// to paths, which must not lead out of the directory.
func (l *link) isName(name string) bool {
	separators := "/\x00"
	if l.machine.goos() == "windows" {
		separators = "/\\\x00"
	}
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, separators)
}

// exactName returns the name of an entry. Only the path has it unchanged if it is not UTF-8.
func (l *link) exactName(e protocol.DirectoryEntry) string {
	if e.Path == nil {
		return e.FileName
	}
	separators := "/"
	if l.machine.goos() == "windows" {
		separators = `/\`
	}
	if osPath := protocol.OSPathOn(l.machine.goos(), e.Path.String()); osPath != "" {
		return osPath[strings.LastIndexAny(osPath, separators)+1:]
	}
	return e.FileName
}

func (l *link) realPath(ctx context.Context, path string) (string, error) {
	var result protocol.PathResult
	err := l.query(ctx, protocol.MethodCanonicalize, l.file(path), &result)
	return protocol.OSPathOn(l.machine.goos(), result.Path.String()), err
}

// writeFile repeats the request after a broken connection, because the result is the
// same. With a nil mode an existing file keeps its own.
func (l *link) writeFile(ctx context.Context, path string, data []byte, mode *protocol.FileMode, replace bool) error {
	_, err := l.repeat(ctx, protocol.MethodWriteFile, protocol.WriteFileParams{
		Path: l.machine.uri(path), Data: data, FollowSymlinks: true, Mode: mode, Replace: replace,
	})
	return err
}

func (l *link) mkdir(ctx context.Context, path string, all bool, mode *protocol.FileMode) error {
	params := protocol.CreateDirectoryParams{Path: l.machine.uri(path), Recursive: all, FollowSymlinks: true, Mode: mode}
	if all {
		_, err := l.repeat(ctx, protocol.MethodCreateDirectory, params)
		return err
	}
	_, err := l.request(ctx, protocol.MethodCreateDirectory, params)
	return err
}

func (l *link) remove(ctx context.Context, path string, all bool) error {
	params := protocol.RemoveParams{Path: l.machine.uri(path), Recursive: all, Force: all, FollowSymlinks: true}
	if all {
		_, err := l.repeat(ctx, protocol.MethodRemove, params)
		return err
	}
	_, err := l.request(ctx, protocol.MethodRemove, params)
	return err
}

func (l *link) copyFile(ctx context.Context, from, to string, all bool) error {
	_, err := l.request(ctx, protocol.MethodCopy, protocol.CopyParams{
		SourcePath: l.machine.uri(from), DestinationPath: l.machine.uri(to), Recursive: all,
	})
	return err
}

// handle is a file that is open at the server. Handles end with their connection. A handle
// for reading is opened again if the file is unchanged, and one of the mode OpenUpdate if it
// is the same file.
type handle struct {
	link *link
	path string
	meta *protocol.FileMetadata // when it was opened; nil for a new file

	mode   protocol.OpenMode  // "" for reading
	create *protocol.FileMode // of a new file, less the umask; nil for the default

	mu      sync.Mutex
	id      string
	epoch   int   // of the connection
	written int64 // the end of the last block that the server has written
}

func (l *link) openFile(ctx context.Context, path string, meta *protocol.FileMetadata) (blocks, error) {
	h := &handle{link: l, path: path, meta: meta}
	return h, h.open(ctx)
}

// openToWrite opens or creates a file. create is the mode of a new file, less the umask;
// nil stands for the default. A mode that is not OpenReplace, and create, require
// capMetadata.
func (l *link) openToWrite(ctx context.Context, path string, mode protocol.OpenMode, create *protocol.FileMode) (blocks, error) {
	h := &handle{link: l, path: path, mode: mode, create: create}
	return h, h.open(ctx)
}

// randomID returns an id for what this program opens in a session.
func randomID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// open opens the file under a new id.
func (h *handle) open(ctx context.Context) error {
	h.id = randomID()
	params := protocol.OpenParams{HandleID: h.id, Path: h.link.machine.uri(h.path), Mode: h.mode, CreateMode: h.create}
	closing := protocol.CloseParams{HandleID: h.id}
	for {
		epoch, err := h.link.tryOpening(ctx, protocol.MethodOpen, params, func(ctx context.Context, conn *rpc.Conn) {
			_, _ = conn.Call(ctx, protocol.MethodClose, closing) // if it fails, the handle ends with the connection
		})
		h.epoch = epoch
		if !errors.As(err, new(*brokenError)) {
			return err
		}
	}
}

// reopen opens the file again when its connection is gone.
func (h *handle) reopen(ctx context.Context, epoch int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.epoch != epoch {
		return nil // another goroutine has
	}
	meta, err := h.link.stat(ctx, h.path)
	if err != nil {
		return err
	}
	if !h.same(meta) {
		return errChanged
	}
	return h.open(ctx)
}

// same reports whether the file at the path is still the one that was opened.
func (h *handle) same(meta *protocol.FileMetadata) bool {
	if h.mode == protocol.OpenUpdate { // the path of a new file is known to nobody else
		return meta.Size >= h.written && (h.meta == nil || meta.CreatedAtMs == h.meta.CreatedAtMs)
	}
	now, before := fileInfo{meta: *meta}, fileInfo{meta: *h.meta}
	return now.Size() == before.Size() && now.ModTime().Equal(before.ModTime())
}

func (h *handle) current() (id string, epoch int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.id, h.epoch
}

func (h *handle) readBlock(ctx context.Context, offset int64, n int) ([]byte, bool, error) {
	for {
		id, epoch := h.current()
		raw, data, err := h.link.tryBulk(ctx, protocol.MethodReadBlock, protocol.ReadBlockParams{HandleID: id, Offset: uint64(offset), Len: uint64(n)})
		// A handle that the server does not know ended with its connection.
		lost := errors.As(err, new(*brokenError)) || isNotExist(err) && h.link.currentEpoch() != epoch
		switch {
		case lost:
			if err := h.reopen(ctx, epoch); err != nil {
				return nil, false, err
			}
			continue
		case err != nil:
			return nil, false, err
		}
		var result protocol.ReadBlockResult
		err = understandBulk(protocol.MethodReadBlock, raw, data, &result)
		if got := len(result.Chunk); err == nil && (got > n || got == 0 && n > 0 && !result.EOF) {
			err = &answerError{protocol.MethodReadBlock, fmt.Errorf("a block of %d bytes instead of %d, and not the end of the file", got, n)}
		}
		if err != nil {
			return nil, false, err
		}
		return result.Chunk, result.EOF, nil
	}
}

func (h *handle) writeBlock(ctx context.Context, offset int64, block []byte) error {
	for {
		id, epoch := h.current()
		_, err := h.link.try(ctx, protocol.MethodWriteBlock, protocol.WriteBlockParams{HandleID: id, Offset: uint64(offset), Chunk: block})
		var broken *brokenError
		switch {
		case errors.As(err, &broken):
			err = broken.cause
		case isNotExist(err) && h.link.currentEpoch() != epoch:
			err = errors.New("the file was being written over a connection that is gone")
		case err == nil:
			h.mu.Lock()
			defer h.mu.Unlock()
			h.written = max(h.written, offset+int64(len(block)))
			return nil
		default:
			return err
		}
		if h.mode != protocol.OpenUpdate {
			return &DisconnectedError{Cause: err}
		}
		if err := h.reopen(ctx, epoch); err != nil {
			return err
		}
	}
}

// close closes the file if it is still open at the server.
func (h *handle) close(ctx context.Context) error {
	id, epoch := h.current()
	if h.link.currentEpoch() != epoch {
		return nil
	}
	_, err := h.link.try(ctx, protocol.MethodClose, protocol.CloseParams{HandleID: id})
	if errors.As(err, new(*brokenError)) || isNotExist(err) && h.link.currentEpoch() != epoch {
		return nil
	}
	return err
}

func (l *link) readLink(ctx context.Context, path string) (string, error) {
	var result protocol.ReadLinkResult
	err := l.query(ctx, protocol.MethodReadLink, l.file(path), &result)
	return result.Text(), err
}

func (l *link) symlink(ctx context.Context, target, path string) error {
	_, err := l.request(ctx, protocol.MethodSymlink, protocol.SymlinkParams{
		Path: l.machine.uri(path), FollowSymlinks: true, LinkTarget: protocol.NewLinkTarget(target),
	})
	return err
}

func (l *link) rename(ctx context.Context, from, to string) error {
	_, err := l.request(ctx, protocol.MethodRename, protocol.RenameParams{
		SourcePath: l.machine.uri(from), DestinationPath: l.machine.uri(to), FollowSymlinks: true,
	})
	return err
}

// setMetadata makes the changes of params, whose path it sets. It repeats the request
// after a broken connection, because the result is the same.
func (l *link) setMetadata(ctx context.Context, path string, params protocol.SetMetadataParams) error {
	params.Path, params.FollowSymlinks = l.machine.uri(path), true
	_, err := l.repeat(ctx, protocol.MethodSetMetadata, params)
	return err
}
