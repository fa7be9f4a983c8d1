package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"

	"execserver/internal/rpc"
	"execserver/protocol"
)

// remoteFiles makes the requests about files.
type remoteFiles struct {
	conns    *connManager
	resolved bool // the paths of changes contain no links, so these requests need not follow any
}

// The next methods return the params of requests, to which the caller may add.

func (f remoteFiles) file(path string) protocol.FileParams {
	return protocol.FileParams{Path: f.conns.machine.uri(path), FollowSymlinks: true}
}

func (f remoteFiles) writeParams(path string, data []byte) protocol.WriteFileParams {
	return protocol.WriteFileParams{Path: f.conns.machine.uri(path), Data: data, FollowSymlinks: !f.resolved}
}

func (f remoteFiles) mkdirParams(path string, all bool) protocol.CreateDirectoryParams {
	return protocol.CreateDirectoryParams{Path: f.conns.machine.uri(path), Recursive: all, FollowSymlinks: !f.resolved}
}

func (f remoteFiles) removeParams(path string, all bool) protocol.RemoveParams {
	// It follows links in the directories; a link itself is removed, never its target.
	return protocol.RemoveParams{Path: f.conns.machine.uri(path), Recursive: all, Force: all, FollowSymlinks: true}
}

func (f remoteFiles) copyParams(from, to string, all bool) protocol.CopyParams {
	return protocol.CopyParams{SourcePath: f.conns.machine.uri(from), DestinationPath: f.conns.machine.uri(to), Recursive: all}
}

func (f remoteFiles) symlinkParams(path, target string) protocol.SymlinkParams {
	return protocol.SymlinkParams{Path: f.conns.machine.uri(path), FollowSymlinks: !f.resolved, LinkTarget: protocol.NewLinkTarget(target)}
}

// With replace, to may exist, even as a link. Then the request follows links, because the server would
// refuse a link in the last place, too. rename(2) replaces the link itself in any case.
func (f remoteFiles) renameParams(from, to string, replace bool) protocol.RenameParams {
	return protocol.RenameParams{
		SourcePath: f.conns.machine.uri(from), DestinationPath: f.conns.machine.uri(to),
		NoReplace: !replace, FollowSymlinks: !f.resolved || replace,
	}
}

// stat describes a file, with details if the server has them.
func (f remoteFiles) stat(ctx context.Context, path string) (*protocol.FileMetadata, error) {
	return f.metadata(ctx, path, false)
}

// metadata describes the file at path or, if itself is true, the link there.
func (f remoteFiles) metadata(ctx context.Context, path string, itself bool) (*protocol.FileMetadata, error) {
	params := f.file(path)
	params.Details, params.Link = f.conns.has(capMetadata), itself
	var meta protocol.FileMetadata
	if err := f.conns.query(ctx, protocol.MethodGetMetadata, params, &meta); err != nil {
		return nil, err
	}
	return &meta, nil
}

func (f remoteFiles) readFile(ctx context.Context, path string) ([]byte, error) {
	var result protocol.ReadFileResult
	err := f.conns.query(ctx, protocol.MethodReadFile, f.file(path), &result)
	return result.Data, err
}

// maxListed and maxListedBytes bound what FS.ReadDir returns, because a caller has it in
// memory.
const (
	maxListed      = 1 << 18
	maxListedBytes = 64 << 20
)

func (f remoteFiles) readDir(ctx context.Context, path string) (entries []protocol.DirectoryEntry, err error) {
	params := f.listing(path, f.conns.has(capMetadata))
	size := 0
	for {
		var page protocol.ReadDirectoryResult
		if err := f.conns.query(ctx, protocol.MethodReadDirectory, params, &page); err != nil {
			return nil, err
		}
		if page.Truncated && page.Next == nil && params.Details {
			// The server has no pages. Without details there is room for more entries.
			params, entries = f.listing(path, false), nil
			continue
		}
		for i, e := range page.Entries {
			name := f.exactName(e)
			if !f.isName(name) {
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
func (f remoteFiles) listing(path string, details bool) protocol.FileParams {
	params := f.file(path)
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
func (f remoteFiles) isName(name string) bool {
	separators := "/\x00"
	if f.conns.machine.goos() == "windows" {
		separators = "/\\\x00"
	}
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, separators)
}

// exactName returns the name of an entry. Only the path has it unchanged if it is not UTF-8.
func (f remoteFiles) exactName(e protocol.DirectoryEntry) string {
	if e.Path == nil {
		return e.FileName
	}
	separators := "/"
	if f.conns.machine.goos() == "windows" {
		separators = `/\`
	}
	if osPath := protocol.OSPathOn(f.conns.machine.goos(), e.Path.String()); osPath != "" {
		return osPath[strings.LastIndexAny(osPath, separators)+1:]
	}
	return e.FileName
}

func (f remoteFiles) realPath(ctx context.Context, path string) (string, error) {
	var result protocol.PathResult
	err := f.conns.query(ctx, protocol.MethodCanonicalize, f.file(path), &result)
	return protocol.OSPathOn(f.conns.machine.goos(), result.Path.String()), err
}

// writeFile repeats the request after a broken connection, because the result is the
// same. With a nil mode an existing file keeps its own.
func (f remoteFiles) writeFile(ctx context.Context, path string, data []byte, mode *protocol.FileMode, replace bool) error {
	params := f.writeParams(path, data)
	params.Mode, params.Replace = mode, replace
	_, err := f.conns.repeat(ctx, protocol.MethodWriteFile, params)
	return err
}

func (f remoteFiles) mkdir(ctx context.Context, path string, all bool, mode *protocol.FileMode) error {
	params := f.mkdirParams(path, all)
	params.Mode = mode
	if all {
		_, err := f.conns.repeat(ctx, protocol.MethodCreateDirectory, params)
		return err
	}
	_, err := f.conns.request(ctx, protocol.MethodCreateDirectory, params)
	return err
}

func (f remoteFiles) remove(ctx context.Context, path string, all bool) error {
	params := f.removeParams(path, all)
	if all {
		_, err := f.conns.repeat(ctx, protocol.MethodRemove, params)
		return err
	}
	_, err := f.conns.request(ctx, protocol.MethodRemove, params)
	return err
}

func (f remoteFiles) copyFile(ctx context.Context, from, to string, all bool) error {
	_, err := f.conns.request(ctx, protocol.MethodCopy, f.copyParams(from, to, all))
	return err
}

// handle is a file that is open on the server. Handles end with their connection. A handle
// for reading is opened again if the file is unchanged, and one of the mode OpenUpdate if it
// is the same file.
type handle struct {
	files remoteFiles
	path  string
	meta  *protocol.FileMetadata // when it was opened; nil for a new file

	mode   protocol.OpenMode  // "" for reading
	create *protocol.FileMode // of a new file, less the umask; nil for the default

	mu      sync.Mutex
	id      string
	epoch   int   // of the connection
	written int64 // the end of the last block that the server has written
}

func (f remoteFiles) openFile(ctx context.Context, path string, meta *protocol.FileMetadata) (blocks, error) {
	h := &handle{files: f, path: path, meta: meta}
	return h, h.open(ctx)
}

// openToWrite opens or creates a file. create is the mode of a new file, less the umask;
// nil stands for the default. A mode that is not OpenReplace, and create, require
// capMetadata.
func (f remoteFiles) openToWrite(ctx context.Context, path string, mode protocol.OpenMode, create *protocol.FileMode) (blocks, error) {
	h := &handle{files: f, path: path, mode: mode, create: create}
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
	params := protocol.OpenParams{HandleID: h.id, Path: h.files.conns.machine.uri(h.path), Mode: h.mode, CreateMode: h.create}
	closing := protocol.CloseParams{HandleID: h.id}
	for {
		epoch, err := h.files.conns.tryOpening(ctx, protocol.MethodOpen, params, func(ctx context.Context, conn *rpc.Conn) {
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
	meta, err := h.files.stat(ctx, h.path)
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
		raw, data, err := h.files.conns.tryBulk(ctx, protocol.MethodReadBlock, protocol.ReadBlockParams{HandleID: id, Offset: uint64(offset), Len: uint64(n)})
		// A handle that the server does not know ended with its connection.
		lost := errors.As(err, new(*brokenError)) || isNotExist(err) && h.files.conns.currentEpoch() != epoch
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
		_, err := h.files.conns.try(ctx, protocol.MethodWriteBlock, protocol.WriteBlockParams{HandleID: id, Offset: uint64(offset), Chunk: block})
		var broken *brokenError
		switch {
		case errors.As(err, &broken):
			err = broken.cause
		case isNotExist(err) && h.files.conns.currentEpoch() != epoch:
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
			return &InterruptedError{err}
		}
		if err := h.reopen(ctx, epoch); err != nil {
			return err
		}
	}
}

// close closes the file. Only fs/close confirms that the content is written. If the connection
// over which it was written is gone, close opens the file again to get that confirmation.
func (h *handle) close(ctx context.Context) error {
	for {
		id, epoch := h.current()
		cause := errors.New("the file was being written over a connection that is gone")
		if h.files.conns.currentEpoch() == epoch {
			_, err := h.files.conns.try(ctx, protocol.MethodClose, protocol.CloseParams{HandleID: id})
			// A server also closes a handle that it does not know.
			known := h.files.conns.currentEpoch() == epoch
			var broken *brokenError
			switch {
			case errors.As(err, &broken):
				cause = broken.cause
			case known || err != nil && !isNotExist(err):
				return err
			}
		}
		switch {
		case h.end() == 0:
			return nil
		case h.mode != protocol.OpenUpdate:
			return &InterruptedError{cause}
		}
		if err := h.reopen(ctx, epoch); err != nil {
			return err
		}
	}
}

// end returns the end of what was written.
func (h *handle) end() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.written
}

func (f remoteFiles) readLink(ctx context.Context, path string) (string, error) {
	var result protocol.ReadLinkResult
	err := f.conns.query(ctx, protocol.MethodReadLink, f.file(path), &result)
	return result.Text(), err
}

func (f remoteFiles) symlink(ctx context.Context, target, path string) error {
	_, err := f.conns.request(ctx, protocol.MethodSymlink, f.symlinkParams(path, target))
	return err
}

func (f remoteFiles) rename(ctx context.Context, from, to string) error {
	_, err := f.conns.request(ctx, protocol.MethodRename, f.renameParams(from, to, true))
	return err
}

// setMetadata makes the changes of params, whose path it sets. It repeats the request
// after a broken connection, because the result is the same.
func (f remoteFiles) setMetadata(ctx context.Context, path string, params protocol.SetMetadataParams) error {
	params.Path, params.FollowSymlinks = f.conns.machine.uri(path), !f.resolved
	_, err := f.conns.repeat(ctx, protocol.MethodSetMetadata, params)
	return err
}
