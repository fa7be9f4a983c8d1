package server

import (
	"context"
	"io/fs"
	"os"

	"execserver/internal/filesystem"
	"execserver/internal/rpc"
	"execserver/protocol"
)

// Requests about one handle keep their order of arrival in a lane of its own. Those that
// write are also among the connection's changes.

// handleLane returns the key of a handle's lane. Lanes of processes have keys in the same
// space; an equal key only means a shared lane.
func handleLane(id string) string { return "\x00file handle " + id }

// inHandleLane serves a request about a handle after earlier ones.
func (c *connection) inHandleLane(r *rpc.Request, id string, serve func()) {
	r.Queue(handleLane(id), rpc.Blocking, func(*rpc.Lane) { serve() })
}

// changeInHandleLane does the same for a request that changes the file.
func (c *connection) changeInHandleLane(r *rpc.Request, id string, serve func()) {
	turn := make(chan struct{})
	x := c.changes.submit(func(*change) { close(turn) })
	c.inHandleLane(r, id, func() {
		defer c.changes.done(x)
		select {
		case <-turn:
			serve()
		case <-r.Context().Done():
			r.Drop()
		}
	})
}

// open serves fs/open.
func (c *connection) open(r *rpc.Request, p protocol.OpenParams, paths []string) {
	c.openWith(r, p, paths[0], func(ctx context.Context, path string, mode filesystem.HandleMode) (*os.File, error) {
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
func (c *connection) openWith(r *rpc.Request, p protocol.OpenParams, path string, opener filesystem.Opener) {
	mode := handleModes[p.Mode]
	serve := func() {
		c.operate(r, func() (any, error) {
			if mode != filesystem.HandleRead {
				if err := c.auditChange(r.Method, []string{path}); err != nil {
					return nil, err
				}
			}
			err := c.handles.OpenWith(r.Context(), p.HandleID, path, mode, opener)
			return protocol.OpenResult{HandleID: p.HandleID}, err
		})
	}
	if mode == filesystem.HandleRead {
		c.inHandleLane(r, p.HandleID, serve)
		return
	}
	c.changeInHandleLane(r, p.HandleID, serve)
}

// readBlock serves fs/readBlock.
func (c *connection) readBlock(r *rpc.Request, p protocol.ReadBlockParams) {
	c.inHandleLane(r, p.HandleID, func() {
		c.operate(r, func() (any, error) {
			if err := c.reserve(r, protocol.Base64Len(int(min(p.Len, filesystem.MaxBlock)))+64); err != nil {
				return nil, err
			}
			chunk, eof, err := c.handles.ReadBlock(r.Context(), p.HandleID, p.Offset, p.Len, nil)
			return protocol.ReadBlockResult{Chunk: chunk, EOF: eof}, err
		})
	})
}

// writeBlock serves fs/writeBlock.
func (c *connection) writeBlock(r *rpc.Request, p protocol.WriteBlockParams) {
	c.changeInHandleLane(r, p.HandleID, func() {
		c.operate(r, func() (any, error) {
			return protocol.Empty{}, c.handles.WriteBlock(r.Context(), p.HandleID, p.Offset, p.Chunk)
		})
	})
}

// closeHandle serves fs/close.
func (c *connection) closeHandle(r *rpc.Request, p protocol.CloseParams) {
	c.inHandleLane(r, p.HandleID, func() {
		c.operate(r, func() (any, error) {
			return protocol.Empty{}, c.handles.CloseHandle(p.HandleID)
		})
	})
}
