package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"

	"execserver/internal/base64"
	"execserver/protocol"
	"execserver/rpc"
)

// The methods about files, over a link.
const (
	methodWriteFile       = "fs/writeFile"
	methodCreateDirectory = "fs/createDirectory"
	methodRemove          = "fs/remove"
	methodCopy            = "fs/copy"
	methodOpen            = "fs/open"
	methodReadBlock       = "fs/readBlock"
	methodWriteBlock      = "fs/writeBlock"
	methodClose           = "fs/close"
)

// look makes a request that changes nothing, and decodes the answer.
func (l *link) look(ctx context.Context, method string, params, result any) error {
	raw, err := l.repeat(ctx, method, params)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, result)
}

func (l *link) file(path string) protocol.File {
	return protocol.File{Path: l.machine.uri(path), FollowSymlinks: true}
}

func (l *link) stat(ctx context.Context, path string) (*protocol.FileMetadata, error) {
	var meta protocol.FileMetadata
	if err := l.look(ctx, protocol.MethodGetMetadata, l.file(path), &meta); err != nil {
		return nil, err
	}
	return &meta, nil
}

func (l *link) readFile(ctx context.Context, path string) ([]byte, error) {
	var result struct {
		Data []byte `json:"dataBase64"`
	}
	err := l.look(ctx, protocol.MethodReadFile, l.file(path), &result)
	return result.Data, err
}

func (l *link) readDir(ctx context.Context, path string) ([]protocol.DirectoryEntry, error) {
	var result protocol.ReadDirectoryResult
	err := l.look(ctx, protocol.MethodReadDirectory, l.file(path), &result)
	if err == nil && result.Truncated {
		err = ErrTruncated
	}
	separators := "/"
	if l.machine.goos() == "windows" {
		separators = `/\`
	}
	for i, e := range result.Entries {
		if e.Path == nil {
			continue
		}
		// The name is not UTF-8, and the path alone tells it right.
		if native := protocol.NativeOn(l.machine.goos(), e.Path.String()); native != "" {
			result.Entries[i].FileName = native[strings.LastIndexAny(native, separators)+1:]
		}
	}
	return result.Entries, err
}

func (l *link) realPath(ctx context.Context, path string) (string, error) {
	var result struct {
		Path string `json:"path"`
	}
	err := l.look(ctx, protocol.MethodCanonicalize, l.file(path), &result)
	return protocol.NativeOn(l.machine.goos(), result.Path), err
}

// dataParams are the params of fs/writeFile and fs/writeBlock.
type dataParams struct {
	name, value string // the path or the handle
	offset      int64  // negative: none
	data        []byte
}

// AppendJSON implements protocol.Appender.
func (p dataParams) AppendJSON(b []byte) []byte {
	b = append(b, '{', '"')
	b = append(b, p.name...)
	b = append(b, `":`...)
	value, _ := json.Marshal(p.value) // a string always encodes
	b = append(b, value...)
	member := `,"dataBase64":"`
	if p.offset >= 0 {
		b = append(b, `,"offset":`...)
		b = strconv.AppendInt(b, p.offset, 10)
		member = `,"chunk":"`
	}
	b = append(b, member...)
	b = base64.AppendEncode(b, p.data)
	return append(b, `"}`...)
}

// writeFile is repeated: it has the same result.
func (l *link) writeFile(ctx context.Context, path string, data []byte) error {
	_, err := l.repeat(ctx, methodWriteFile, dataParams{"path", l.machine.uri(path).String(), -1, data})
	return err
}

func (l *link) mkdir(ctx context.Context, path string, all bool) error {
	params := map[string]any{"path": l.machine.uri(path), "recursive": all}
	if all {
		_, err := l.repeat(ctx, methodCreateDirectory, params)
		return err
	}
	_, err := l.request(ctx, methodCreateDirectory, params)
	return err
}

func (l *link) remove(ctx context.Context, path string, all bool) error {
	params := map[string]any{"path": l.machine.uri(path), "recursive": all, "force": all}
	if all {
		_, err := l.repeat(ctx, methodRemove, params)
		return err
	}
	_, err := l.request(ctx, methodRemove, params)
	return err
}

func (l *link) copyFile(ctx context.Context, from, to string, all bool) error {
	_, err := l.request(ctx, methodCopy, map[string]any{
		"sourcePath": l.machine.uri(from), "destinationPath": l.machine.uri(to), "recursive": all,
	})
	return err
}

// handle is a file that is open at the server. Handles go with their connection:
// one for reading is opened again, if the file is still the same.
type handle struct {
	link *link
	path string
	meta *protocol.FileMetadata // nil: for writing

	mu    sync.Mutex
	id    string
	epoch int // of the connection
}

func (l *link) openFile(ctx context.Context, path string, meta *protocol.FileMetadata) (blocks, error) {
	h := &handle{link: l, path: path, meta: meta}
	return h, h.open(ctx)
}

func (l *link) createFile(ctx context.Context, path string) (blocks, error) {
	h := &handle{link: l, path: path}
	return h, h.open(ctx)
}

// open opens the file under a new id.
func (h *handle) open(ctx context.Context) error {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	h.id = hex.EncodeToString(id[:])
	params := map[string]any{"handleId": h.id, "path": h.link.machine.uri(h.path)}
	if h.meta == nil {
		params["mode"] = "replace"
	}
	closing := map[string]any{"handleId": h.id}
	for {
		epoch, err := h.link.tryOpening(ctx, methodOpen, params, func(ctx context.Context, conn *rpc.Conn) {
			_, _ = conn.Call(ctx, methodClose, closing) // or the handle goes with the connection
		})
		h.epoch = epoch
		if !errors.As(err, new(*errBroken)) {
			return err
		}
	}
}

// reopen opens a file that is read again when its connection is gone.
func (h *handle) reopen(ctx context.Context, epoch int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.epoch != epoch {
		return nil // somebody else has
	}
	meta, err := h.link.stat(ctx, h.path)
	if err != nil {
		return err
	}
	if meta.Size != h.meta.Size || meta.ModifiedAtMs != h.meta.ModifiedAtMs {
		return errChanged
	}
	return h.open(ctx)
}

func (h *handle) current() (id string, epoch int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.id, h.epoch
}

func (h *handle) readBlock(ctx context.Context, offset int64, n int) ([]byte, bool, error) {
	for {
		id, epoch := h.current()
		raw, err := h.link.try(ctx, methodReadBlock, map[string]any{"handleId": id, "offset": offset, "len": n})
		// A handle that the server does not know went with its connection.
		lost := errors.As(err, new(*errBroken)) || isNotExist(err) && h.link.currentEpoch() != epoch
		switch {
		case lost:
			if err := h.reopen(ctx, epoch); err != nil {
				return nil, false, err
			}
			continue
		case err != nil:
			return nil, false, err
		}
		var result struct {
			Chunk []byte `json:"chunk"`
			EOF   bool   `json:"eof"`
		}
		if err := json.Unmarshal(raw, &result); err != nil {
			return nil, false, err
		}
		return result.Chunk, result.EOF, nil
	}
}

func (h *handle) writeBlock(ctx context.Context, offset int64, block []byte) error {
	id, epoch := h.current()
	_, err := h.link.request(ctx, methodWriteBlock, dataParams{"handleId", id, offset, block})
	if isNotExist(err) && h.link.currentEpoch() != epoch {
		return &DisconnectedError{Cause: errors.New("the file was being written over a connection that is gone")}
	}
	return err
}

// close closes the file, if the server has it open still.
func (h *handle) close(ctx context.Context) error {
	id, epoch := h.current()
	if h.link.currentEpoch() != epoch {
		return nil
	}
	_, err := h.link.try(ctx, methodClose, map[string]any{"handleId": id})
	if errors.As(err, new(*errBroken)) || isNotExist(err) && h.link.currentEpoch() != epoch {
		return nil
	}
	return err
}
