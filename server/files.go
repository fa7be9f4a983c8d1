package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"execserver/filesystem"
	"execserver/internal/errno"
	"execserver/protocol"
	"execserver/rpc"
)

// maxFileOperations bounds the file operations that are under way for all
// connections. Each occupies a thread, for good if the file system does not
// answer, and a program may only have so many.
const maxFileOperations = 4096

// Bounds of listings, so that the answer is one that clients take: below
// protocol.MaxAnswerBytes and protocol.MaxValues.
const (
	maxListingBytes  = 48 << 20                // of an encoded answer
	maxListingValues = protocol.MaxValues - 16 // JSON values in it
	maxWalkPathBytes = 16 << 20                // before they are escaped, which at most triples them

	firstListingBytes = 64 << 10 // that are reserved before it is known how long the answer is
)

// native makes host paths of those in a request. It reports false when the
// request is served already: refused, since there are none, or taken over by a
// helper in the sandbox that it asks for.
func (c *connection) native(r *rpc.Request, sandbox json.RawMessage, paths ...protocol.Path) ([]string, bool) {
	list := make([]string, len(paths))
	for i, p := range paths {
		path, err := p.Native()
		if err != nil {
			r.Fail(protocol.Errorf(protocol.CodeInvalidRequest, "%s", err))
			return nil, false
		}
		list[i] = path
	}
	policy, err := c.filePolicy(r.Method, sandbox)
	if err != nil {
		r.Fail(err)
		return nil, false
	}
	if policy != nil {
		c.serveConfined(r, policy, list)
		return nil, false
	}
	return list, true
}

// look serves a request that changes nothing, beside all others.
func (c *connection) look(r *rpc.Request, do func() (any, error)) {
	r.Pool(func() { c.operate(r, do) })
}

// list is look for a request whose answer may be as large as clients take, and
// is not known before. do may be called several times; see reserveInSteps.
func (c *connection) list(r *rpc.Request, do func(fits func(bytes int) bool) (any, error)) {
	r.HeavyPool(func() {
		c.operate(r, func() (any, error) {
			return c.reserveInSteps(r, firstListingBytes, do)
		})
	})
}

// change serves a request that changes something at these paths, in order.
func (c *connection) change(r *rpc.Request, paths []string, do func() error) {
	c.changes.submit(paths, func(x *change) {
		r.Go(func() {
			defer c.changes.done(x)
			c.operate(r, func() (any, error) {
				if err := c.auditChange(r.Method, paths); err != nil {
					return nil, err
				}
				return protocol.Empty{}, do()
			})
		})
	})
}

// operate does something with files that may take its time, and answers with
// its result.
func (c *connection) operate(r *rpc.Request, do func() (any, error)) {
	if r.Context().Err() != nil {
		r.Drop()
		return
	}
	if limit := c.server.maxOperations; c.server.operations.Add(1) > limit {
		c.server.operations.Add(-1)
		r.Fail(protocol.Errorf(protocol.CodeInternal,
			"the server has its limit of %d file operations under way; perhaps a file system does not answer", limit))
		return
	}
	defer c.server.operations.Add(-1)
	result, err := do()
	if err != nil {
		r.Fail(fileError(err))
		return
	}
	r.Reply(result)
}

// reserve is r.Reserve within an operation, which is not under way meanwhile.
func (c *connection) reserve(r *rpc.Request, n int) error {
	c.server.operations.Add(-1)
	defer c.server.operations.Add(1)
	return r.Reserve(n)
}

// reserveInSteps reserves for an answer whose size is not known before, first n
// bytes. do makes the answer, and calls fits with the size in bytes that it is
// about to have. Where there is no room for more, fits returns false; do must
// then return, what it has made is dropped, and do is called again when there is
// twice the room. Nothing waits while it holds memory.
func (c *connection) reserveInSteps(r *rpc.Request, n int, do func(fits func(bytes int) bool) (any, error)) (any, error) {
	for {
		if err := c.reserve(r, n); err != nil {
			return nil, err
		}
		short := false
		answer, err := do(func(bytes int) bool {
			if bytes <= n {
				return true
			}
			n = 2 * bytes
			short = !r.Grow(n)
			return !short
		})
		if err != nil || !short {
			return answer, err
		}
	}
}

// fileError gives an error of the file system its code and text on the wire
// (PROTOCOL.md, "Errors of files").
func fileError(err error) error {
	if coded, ok := errors.AsType[*protocol.Error](err); ok {
		return coded
	}
	kind, text := filesystem.Classify(err)
	if changed, ok := errors.AsType[*filesystem.ChangedError](err); ok {
		e := protocol.Errorf(protocol.CodeFileChanged, "%s", text)
		var data protocol.FileChanged
		if changed.Got != "" {
			data.SHA256 = &changed.Got
		}
		e.Data, _ = json.Marshal(data) // a string always encodes
		return e
	}
	switch kind {
	case filesystem.NotFound:
		return protocol.Errorf(protocol.CodeNotFound, "%s", text)
	case filesystem.InvalidInput:
		return protocol.Errorf(protocol.CodeInvalidRequest, "%s", text)
	}
	return protocol.Errorf(protocol.CodeInternal, "%s", text)
}

func links(follow bool) filesystem.Links {
	if follow {
		return filesystem.Follow
	}
	return filesystem.NoFollow
}

// getMetadata serves fs/getMetadata.
func (c *connection) getMetadata(r *rpc.Request, p protocol.File) {
	paths, ok := c.native(r, p.Sandbox, p.Path)
	if !ok {
		return
	}
	c.look(r, func() (any, error) {
		m, err := filesystem.GetMetadata(r.Context(), paths[0], links(p.FollowSymlinks))
		if err != nil {
			return nil, err
		}
		return protocol.FileMetadata{
			IsDirectory:  m.IsDirectory,
			IsFile:       m.IsFile,
			IsSymlink:    m.IsSymlink,
			Size:         m.Size,
			CreatedAtMs:  filesystem.Milliseconds(m.Created),
			ModifiedAtMs: filesystem.Milliseconds(m.Modified),
		}, nil
	})
}

// readDirectory serves fs/readDirectory.
func (c *connection) readDirectory(r *rpc.Request, p protocol.File) {
	paths, ok := c.native(r, p.Sandbox, p.Path)
	if !ok {
		return
	}
	c.list(r, func(fits func(int) bool) (any, error) {
		result := protocol.ReadDirectoryResult{Entries: []protocol.DirectoryEntry{}}
		bytes, values := 64, 0
		err := filesystem.ReadDirectory(r.Context(), paths[0], func(e filesystem.DirEntry) bool {
			entry := protocol.DirectoryEntry{FileName: e.Name, IsDirectory: e.IsDirectory, IsFile: e.IsFile}
			if !utf8.ValidString(e.Name) {
				full := protocol.URIPath(filepath.Join(paths[0], e.Name))
				entry.Path = &full
			}
			bytes += entry.EncodedLen()
			values += entry.Values()
			if bytes > maxListingBytes || values > maxListingValues {
				result.Truncated = true
				return false
			}
			if !fits(bytes) {
				return false
			}
			result.Entries = append(result.Entries, entry)
			return true
		})
		return result, err
	})
}

// walk serves fs/walk.
func (c *connection) walk(r *rpc.Request, p protocol.Walk) {
	paths, ok := c.native(r, p.Sandbox, p.Path)
	if !ok {
		return
	}
	c.list(r, func(fits func(int) bool) (any, error) {
		found, err := filesystem.Walk(r.Context(), paths[0], filesystem.WalkOptions{
			MaxDepth:                clampInt(p.Options.MaxDepth),
			MaxDirectories:          clampInt(p.Options.MaxDirectories),
			MaxEntries:              clampInt(p.Options.MaxEntries),
			MaxPathBytes:            maxWalkPathBytes,
			Fits:                    func(count, pathBytes int) bool { return fits(64 + 64*count + 2*pathBytes) },
			FollowDirectorySymlinks: p.Options.FollowDirectorySymlinks,
			PruneHiddenDirectories:  p.Options.PruneHiddenDirectories,
		})
		if err != nil {
			return nil, err
		}
		result := protocol.WalkResult{
			Entries:   make([]protocol.WalkEntry, len(found.Entries)),
			Errors:    make([]protocol.WalkError, len(found.Errors)),
			Truncated: found.Truncated,
		}
		for i, e := range found.Entries {
			result.Entries[i] = protocol.WalkEntry{Path: p.Path.WithNative(e.Path), Kind: protocol.WalkFile}
			if e.IsDirectory {
				result.Entries[i].Kind = protocol.WalkDirectory
			}
		}
		for i, e := range found.Errors {
			result.Errors[i] = protocol.WalkError{Path: p.Path.WithNative(e.Path), Message: errno.Text(e.Err)}
		}
		return result, nil
	})
}

// clampInt converts a number of the wire, however large.
func clampInt(n uint64) int { return int(min(n, 1<<31-1)) }

// canonicalize serves fs/canonicalize.
func (c *connection) canonicalize(r *rpc.Request, p protocol.File) {
	paths, ok := c.native(r, p.Sandbox, p.Path)
	if !ok {
		return
	}
	c.look(r, func() (any, error) {
		real, err := filesystem.Canonicalize(r.Context(), paths[0])
		if err != nil {
			return nil, fmt.Errorf("canonicalize %s: %w", paths[0], err)
		}
		return protocol.PathResult{Path: p.Path.WithNative(real)}, nil
	})
}

// join serves fs/join. It looks at no file.
func (c *connection) join(r *rpc.Request, p protocol.Join) {
	paths, ok := c.native(r, p.Sandbox, p.BasePath)
	if !ok {
		return
	}
	if strings.IndexByte(p.Path, 0) >= 0 {
		r.Fail(protocol.Errorf(protocol.CodeInvalidParams, "path must not contain a NUL"))
		return
	}
	if absolute, err := protocol.ParsePath(p.Path); err == nil && absolute.IsURI() == p.BasePath.IsURI() {
		r.Reply(protocol.PathResult{Path: absolute})
		return
	}
	r.Reply(protocol.PathResult{Path: p.BasePath.WithNative(filesystem.Join(paths[0], p.Path))})
}

// parent serves fs/parent. It looks at no file.
func (c *connection) parent(r *rpc.Request, p protocol.File) {
	paths, ok := c.native(r, p.Sandbox, p.Path)
	if !ok {
		return
	}
	var result protocol.PathResult
	if parent, ok := filesystem.Parent(paths[0]); ok {
		result.Path = p.Path.WithNative(parent)
	}
	r.Reply(result)
}
