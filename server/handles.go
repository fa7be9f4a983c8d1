package server

import (
	"slices"
	"sync"

	"execserver/filesystem"
	"execserver/internal/base64"
	"execserver/protocol"
	"execserver/rpc"
)

// Requests about one handle keep their order of arrival in a lane of its own;
// those that write are also changes among the others of the connection.

// opening holds the paths of the handles that are being opened, by id. An id has
// several if the client has sent more than one fs/open for it: any of them may be
// the one that succeeds. How many there are in all, the connection's admission
// bounds. The zero value is ready to use.
type opening struct {
	mu    sync.Mutex
	paths map[string][]string
}

// begin records that an id may soon stand for a path.
func (o *opening) begin(id, path string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.paths == nil {
		o.paths = make(map[string][]string)
	}
	o.paths[id] = append(o.paths[id], path)
}

// end records that the earliest open of an id is over, whether it succeeded or not.
func (o *opening) end(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.paths[id]) == 1 {
		delete(o.paths, id)
		return
	}
	o.paths[id] = o.paths[id][1:]
}

// of returns the paths that an id may soon stand for.
func (o *opening) of(id string) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.paths[id])
}

// handleLane is the key of the lane of a handle, in the same space as the ids of
// processes. One that is the same as another only shares its lane.
func handleLane(id string) string { return "\x00file handle " + id }

// inHandleLane serves a request about a handle after those before it.
func (c *connection) inHandleLane(r *rpc.Request, id string, serve func()) {
	r.Queue(handleLane(id), false, false, func(*rpc.Lane) { serve() })
}

// changeInHandleLane does the same for one that changes the file at one of these
// paths.
func (c *connection) changeInHandleLane(r *rpc.Request, id string, paths []string, serve func()) {
	turn := make(chan struct{})
	x := c.changes.submit(paths, func(*change) { close(turn) })
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
func (c *connection) open(r *rpc.Request, p protocol.Open) {
	paths, ok := c.native(r, p.Sandbox, p.Path)
	if ok {
		c.openWith(r, p, paths[0], filesystem.OpenFile)
	}
}

// openWith serves fs/open with what opens the file.
func (c *connection) openWith(r *rpc.Request, p protocol.Open, path string, opener filesystem.Opener) {
	mode := filesystem.HandleRead
	if p.Mode != protocol.OpenRead {
		mode = filesystem.HandleReplace
	}
	c.opening.begin(p.HandleID, path)
	serve := func() {
		defer c.opening.end(p.HandleID)
		c.operate(r, func() (any, error) {
			if mode == filesystem.HandleReplace {
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
	c.changeInHandleLane(r, p.HandleID, []string{path}, serve)
}

// handlePaths returns the paths that a handle may stand for when the requests
// before have been served, none if it is unknown.
func (c *connection) handlePaths(id string) []string {
	paths := c.opening.of(id)
	if path, ok := c.handles.Path(id); ok {
		paths = append(paths, path)
	}
	return paths
}

// readBlock serves fs/readBlock.
func (c *connection) readBlock(r *rpc.Request, p protocol.ReadBlock) {
	c.inHandleLane(r, p.HandleID, func() {
		c.operate(r, func() (any, error) {
			if err := c.reserve(r, base64.EncodedLen(int(min(p.Len, filesystem.MaxBlock)))+64); err != nil {
				return nil, err
			}
			chunk, eof, err := c.handles.ReadBlock(r.Context(), p.HandleID, p.Offset, p.Len, nil)
			return protocol.ReadBlockResult{Chunk: chunk, EOF: eof}, err
		})
	})
}

// writeBlock serves fs/writeBlock.
func (c *connection) writeBlock(r *rpc.Request, p protocol.WriteBlock) {
	c.changeInHandleLane(r, p.HandleID, c.handlePaths(p.HandleID), func() {
		c.operate(r, func() (any, error) {
			return protocol.Empty{}, c.handles.WriteBlock(r.Context(), p.HandleID, p.Offset, p.Chunk)
		})
	})
}

// closeHandle serves fs/close.
func (c *connection) closeHandle(r *rpc.Request, p protocol.Close) {
	c.inHandleLane(r, p.HandleID, func() {
		c.operate(r, func() (any, error) {
			return protocol.Empty{}, c.handles.CloseHandle(p.HandleID)
		})
	})
}
