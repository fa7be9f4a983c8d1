package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"execserver/internal/filesystem"
	"execserver/internal/rpc"
	"execserver/internal/sys"
	"execserver/protocol"
)

// maxFileOperations bounds the file operations in progress for all connections. Each
// occupies a thread, forever if the file system does not answer, and a program may have
// only so many threads.
const maxFileOperations = 4096

// Bounds of listings, so that clients accept the answer: below protocol.MaxAnswerBytes
// and protocol.MaxValues.
const (
	maxListingBytes  = 48 << 20                // of an encoded answer
	maxListingValues = protocol.MaxValues - 16 // JSON values in it
	maxWalkPathBytes = 16 << 20                // before they are escaped, which at most triples them

	firstListingBytes = 64 << 10 // reserved before the length of the answer is known
)

// answer serves a request that changes nothing, concurrently with all others.
func (c *connection) answer(r *rpc.Request, do func() (any, error)) {
	r.FilePool(func() { c.operate(r, do) })
}

// answerLarge is like answer, for an answer that may be as large as clients accept and
// whose size is not known before. It may call do several times; see reserveInSteps.
func (c *connection) answerLarge(r *rpc.Request, do func(fits func(bytes int) bool) (any, error)) {
	r.HeavyFilePool(func() {
		c.operate(r, func() (any, error) {
			return c.reserveInSteps(r, firstListingBytes, do)
		})
	})
}

// change serves a request that changes something at these paths, in order.
func (c *connection) change(r *rpc.Request, paths []string, do func() error) {
	c.changeWith(r, paths, func() (any, error) { return protocol.Empty{}, do() })
}

// changeWith is change for a request whose answer says something.
func (c *connection) changeWith(r *rpc.Request, paths []string, do func() (any, error)) {
	c.changes.submit(func(x *change) {
		r.Go(func() {
			defer c.changes.done(x)
			c.operate(r, func() (any, error) {
				if err := c.auditChange(r.Method, paths); err != nil {
					return nil, err
				}
				return do()
			})
		})
	})
}

// operate runs a file operation that may block, and answers with its result.
func (c *connection) operate(r *rpc.Request, do func() (any, error)) {
	if r.Context().Err() != nil {
		r.Drop()
		return
	}
	if err := c.takeOperation(); err != nil {
		r.Fail(err)
		return
	}
	defer c.giveOperation()
	result, err := do()
	if err != nil {
		r.Fail(fileError(err))
		return
	}
	r.Reply(result)
}

// reserve is like r.ReserveFile, within an operation, which does not count as in progress
// meanwhile.
func (c *connection) reserve(r *rpc.Request, n int) error {
	c.giveOperation()
	defer c.server.quotas.operations.Add(c.principal.QuotaKey())
	return r.ReserveFile(n)
}

// reserveInSteps reserves memory for an answer of unknown size, first n bytes. do makes
// the answer and calls fits with the size in bytes that it will have. If there is no room
// for more, fits returns false and do must return; its result is dropped, and do is
// called again with twice the room. Nothing waits while it holds memory.
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
			short = !r.GrowFile(n)
			return !short
		})
		if err != nil || !short {
			return answer, err
		}
	}
}

// fileError gives a file system error its code and text on the wire (PROTOCOL.md, "Errors
// of files").
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

// walk serves fs/walk.
func (c *connection) walk(r *rpc.Request, p protocol.WalkParams, paths []string) {
	c.answerLarge(r, func(fits func(int) bool) (any, error) {
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
		size := 1 << 10
		for i, e := range found.Entries {
			result.Entries[i] = protocol.WalkEntry{Path: p.Path.WithOSPath(e.Path), Kind: protocol.WalkFile}
			if e.IsDirectory {
				result.Entries[i].Kind = protocol.WalkDirectory
			}
			size += len(result.Entries[i].Path.String()) + len(`{"path":"","kind":"directory"},`)
		}
		for i, e := range found.Errors {
			result.Errors[i] = protocol.WalkError{Path: p.Path.WithOSPath(e.Path), Message: sys.ErrorText(e.Err)}
		}
		// In memory that need not grow, which would leave the collector as much again.
		return rpc.Encoded(result.AppendJSON(r.Begin(size))), nil
	})
}

// clampInt converts a number of the wire, however large.
func clampInt(n uint64) int { return int(min(n, 1<<31-1)) }

// canonicalize serves fs/canonicalize.
func (c *connection) canonicalize(r *rpc.Request, p protocol.FileParams, paths []string) {
	c.answer(r, func() (any, error) {
		real, err := filesystem.Canonicalize(r.Context(), paths[0])
		if err != nil {
			return nil, fmt.Errorf("canonicalize %s: %w", paths[0], err)
		}
		return protocol.PathResult{Path: p.Path.WithOSPath(real)}, nil
	})
}

// join serves fs/join. It accesses no file.
func (c *connection) join(r *rpc.Request, p protocol.JoinParams, paths []string) {
	if strings.IndexByte(p.Path, 0) >= 0 {
		r.Fail(protocol.Errorf(protocol.CodeInvalidParams, "path must not contain a NUL"))
		return
	}
	if absolute, err := protocol.ParsePath(p.Path); err == nil && absolute.IsURI() == p.BasePath.IsURI() {
		r.Reply(protocol.PathResult{Path: absolute})
		return
	}
	r.Reply(protocol.PathResult{Path: p.BasePath.WithOSPath(filesystem.Join(paths[0], p.Path))})
}

// parent serves fs/parent. It accesses no file.
func (c *connection) parent(r *rpc.Request, p protocol.FileParams, paths []string) {
	var result protocol.PathResult
	if parent, ok := filesystem.Parent(paths[0]); ok {
		result.Path = p.Path.WithOSPath(parent)
	}
	r.Reply(result)
}
