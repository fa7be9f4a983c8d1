package server

import (
	"context"
	"io/fs"
	"os"
	"slices"
	"sync"

	"execserver/internal/base64"
	"execserver/internal/filesystem"
	"execserver/internal/rpc"
	"execserver/protocol"
)

// Requests about one handle keep their order of arrival in a lane of its own. Those that
// write are also among the connection's changes.

// opening holds the paths of the handles that are being opened, by id. An id has several
// paths if the client has sent more than one fs/open for it, because any of them may
// succeed. The connection's admission bounds their number. The zero value is ready to
// use.
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

// end records that the earliest open of an id is over, successful or not.
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

// handleLane returns the key of a handle's lane. Lanes of processes have keys in the same
// space; an equal key only means a shared lane.
func handleLane(id string) string { return "\x00file handle " + id }

// inHandleLane serves a request about a handle after earlier ones.
func (c *connection) inHandleLane(r *rpc.Request, id string, serve func()) {
	r.Queue(handleLane(id), rpc.Blocking, func(*rpc.Lane) { serve() })
}

// changeInHandleLane does the same for a request that changes the file at one of these
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
	c.opening.begin(p.HandleID, path)
	serve := func() {
		defer c.opening.end(p.HandleID)
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
	c.changeInHandleLane(r, p.HandleID, []string{path}, serve)
}

// handlePaths returns the paths for which a handle may stand once the earlier requests
// have been served. It returns none for an unknown handle.
func (c *connection) handlePaths(id string) []string {
	paths := c.opening.of(id)
	if path, ok := c.handles.Path(id); ok {
		paths = append(paths, path)
	}
	return paths
}

// readBlock serves fs/readBlock.
func (c *connection) readBlock(r *rpc.Request, p protocol.ReadBlockParams) {
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
func (c *connection) writeBlock(r *rpc.Request, p protocol.WriteBlockParams) {
	c.changeInHandleLane(r, p.HandleID, c.handlePaths(p.HandleID), func() {
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
