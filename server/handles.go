package server

import (
	"execserver/filesystem"
	"execserver/internal/base64"
	"execserver/protocol"
	"execserver/rpc"
)

// Requests about one handle keep their order of arrival in a lane of its own;
// those that write are also changes among the others of the connection.

// maxHandlePaths bounds what a connection remembers of handles that it was asked
// to open, whether that worked or not.
const maxHandlePaths = 4 * filesystem.MaxHandles

// handleLane is the key of the lane of a handle, in the same space as the ids of
// processes. One that is the same as another only shares its lane.
func handleLane(id string) string { return "\x00file handle " + id }

// inHandleLane serves a request about a handle after those before it.
func (c *connection) inHandleLane(r *rpc.Request, id string, do func() (any, error)) {
	r.Queue(handleLane(id), false, false, func(*rpc.Lane) { c.operate(r, do) })
}

// changeInHandleLane does the same for one that changes the handle's file.
func (c *connection) changeInHandleLane(r *rpc.Request, id string, do func() (any, error)) {
	turn := make(chan struct{})
	var paths []string
	if path, ok := c.handlePaths[id]; ok {
		paths = []string{path}
	}
	x := c.changes.submit(paths, func(*change) { close(turn) })
	r.Queue(handleLane(id), false, false, func(*rpc.Lane) {
		defer c.changes.done(x)
		select {
		case <-turn:
			c.operate(r, do)
		case <-r.Context().Done():
			r.Drop()
		}
	})
}

// open serves fs/open.
func (c *connection) open(r *rpc.Request, p protocol.Open) {
	paths, ok := c.native(r, p.Sandbox, p.Path)
	if ok {
		c.openWith(r, p, paths[0], filesystem.OpenFile)
	}
}

// openWith serves fs/open with what opens the file.
func (c *connection) openWith(r *rpc.Request, p protocol.Open, path string, opener filesystem.Opener) {
	do := func(mode filesystem.HandleMode) func() (any, error) {
		return func() (any, error) {
			err := c.handles.OpenWith(r.Context(), p.HandleID, path, mode, opener)
			return protocol.OpenResult{HandleID: p.HandleID}, err
		}
	}
	if p.Mode == protocol.OpenRead {
		c.inHandleLane(r, p.HandleID, do(filesystem.HandleRead))
		return
	}
	if _, known := c.handlePaths[p.HandleID]; !known && len(c.handlePaths) < maxHandlePaths {
		c.handlePaths[p.HandleID] = path
	}
	c.changeInHandleLane(r, p.HandleID, do(filesystem.HandleReplace))
}

// readBlock serves fs/readBlock.
func (c *connection) readBlock(r *rpc.Request, p protocol.ReadBlock) {
	c.inHandleLane(r, p.HandleID, func() (any, error) {
		if err := c.reserve(r, base64.EncodedLen(int(min(p.Len, filesystem.MaxBlock)))+64); err != nil {
			return nil, err
		}
		chunk, eof, err := c.handles.ReadBlock(r.Context(), p.HandleID, p.Offset, p.Len, nil)
		return protocol.ReadBlockResult{Chunk: chunk, EOF: eof}, err
	})
}

// writeBlock serves fs/writeBlock.
func (c *connection) writeBlock(r *rpc.Request, p protocol.WriteBlock) {
	c.changeInHandleLane(r, p.HandleID, func() (any, error) {
		return protocol.Empty{}, c.handles.WriteBlock(r.Context(), p.HandleID, p.Offset, p.Chunk)
	})
}

// closeHandle serves fs/close.
func (c *connection) closeHandle(r *rpc.Request, p protocol.Close) {
	delete(c.handlePaths, p.HandleID)
	c.inHandleLane(r, p.HandleID, func() (any, error) {
		return protocol.Empty{}, c.handles.CloseHandle(p.HandleID)
	})
}
