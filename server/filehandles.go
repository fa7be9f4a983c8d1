package server

import (
	"context"
	"io/fs"
	"os"

	"execserver/internal/filesystem"
	"execserver/internal/quota"
	"execserver/internal/rpc"
	"execserver/internal/session"
	"execserver/protocol"
)

// handleHandler serves the methods about file handles. Requests about one handle keep
// their order of arrival in a lane of its own. Those that write are also among the
// connection's changes.
type handleHandler struct {
	*fileOperations
	files filesystem.Handles
}

func newHandleHandler(operations *fileOperations) *handleHandler {
	h := &handleHandler{fileOperations: operations}
	h.files.Durable, h.files.Admit = operations.server.opts.DurableWrites, h.admit
	return h
}

// handleLane returns the key of a handle's lane. Lanes of processes have keys in the same
// space; an equal key only means a shared lane.
func handleLane(id string) string { return "\x00file handle " + id }

// inHandleLane serves a request about a handle after earlier ones.
func (h *handleHandler) inHandleLane(r *rpc.Request, id string, serve func()) {
	r.Queue(handleLane(id), rpc.Blocking, func(*rpc.Lane) { serve() })
}

// changeInHandleLane does the same for a request that changes the file.
func (h *handleHandler) changeInHandleLane(r *rpc.Request, id string, serve func()) {
	turn := make(chan struct{})
	x := &session.Change{Begin: func() { close(turn) }, Drop: r.Drop}
	// If the connection ends before the request's turn in the lane, serve is not called.
	r.Then(func(error) { h.changes.Done(x) })
	h.changes.Submit(x)
	h.inHandleLane(r, id, func() {
		select {
		case <-turn:
			serve()
		case <-r.Context().Done():
			r.Drop()
		}
	})
}

// open serves fs/open.
func (h *handleHandler) open(r *rpc.Request, p protocol.OpenParams, paths []string) {
	h.openWith(r, p, paths[0], func(ctx context.Context, path string, mode filesystem.HandleMode) (*os.File, error) {
		return filesystem.OpenFile(ctx, path, mode, createMode(p))
	})
}

// defaultCreateMode is the mode of new files without createMode.
const defaultCreateMode = 0o666

// createMode returns the mode of a file that fs/open creates, to which the umask applies.
func createMode(p protocol.OpenParams) fs.FileMode {
	if p.CreateMode == nil {
		return defaultCreateMode
	}
	return fs.FileMode(*p.CreateMode).Perm()
}

// handleModes are the modes of fs/open.
var handleModes = map[protocol.OpenMode]filesystem.HandleMode{
	protocol.OpenRead:    filesystem.HandleRead,
	protocol.OpenReplace: filesystem.HandleReplace,
	protocol.OpenUpdate:  filesystem.HandleUpdate,
}

// openWith serves fs/open with a function that opens the file.
func (h *handleHandler) openWith(r *rpc.Request, p protocol.OpenParams, path string, opener filesystem.Opener) {
	mode := handleModes[p.Mode]
	serve := func() {
		h.operate(r, func() (any, error) {
			if mode != filesystem.HandleRead {
				if err := h.auditChange(r.Method, []string{path}); err != nil {
					return nil, err
				}
			}
			err := h.files.OpenWith(r.Context(), p.HandleID, path, mode, opener)
			return protocol.OpenResult{HandleID: p.HandleID}, err
		})
	}
	if mode == filesystem.HandleRead {
		h.inHandleLane(r, p.HandleID, serve)
		return
	}
	h.changeInHandleLane(r, p.HandleID, serve)
}

// readBlock serves fs/readBlock.
func (h *handleHandler) readBlock(r *rpc.Request, p protocol.ReadBlockParams) {
	h.inHandleLane(r, p.HandleID, func() {
		h.operate(r, func() (any, error) {
			if err := h.reserve(r, protocol.Base64Len(int(min(p.Len, filesystem.MaxBlock)))+64); err != nil {
				return nil, err
			}
			chunk, eof, err := h.files.ReadBlock(r.Context(), p.HandleID, p.Offset, p.Len, nil)
			return protocol.ReadBlockResult{Chunk: chunk, EOF: eof}, err
		})
	})
}

// writeBlock serves fs/writeBlock.
func (h *handleHandler) writeBlock(r *rpc.Request, p protocol.WriteBlockParams) {
	h.changeInHandleLane(r, p.HandleID, func() {
		h.operate(r, func() (any, error) {
			return protocol.Empty{}, h.files.WriteBlock(r.Context(), p.HandleID, p.Offset, p.Chunk)
		})
	})
}

// closeHandle serves fs/close.
func (h *handleHandler) closeHandle(r *rpc.Request, p protocol.CloseParams) {
	h.inHandleLane(r, p.HandleID, func() {
		h.operate(r, func() (any, error) {
			return protocol.Empty{}, h.files.CloseHandle(p.HandleID)
		})
	})
}

// admit counts one more open file of a principal that has a quota.
func (h *handleHandler) admit() (leave func(), err error) {
	of := h.principal.QuotaKey()
	if of == quota.None {
		return func() {}, nil
	}
	handles := h.server.quotas.handles
	if refusal := handles.Take(of); refusal != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidRequest, "%s; close one", refusal.Of("has", "file handles"))
	}
	return func() { handles.Release(of) }, nil
}
