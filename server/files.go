package server

import (
	"bytes"
	"fmt"
	"path/filepath"
	"unicode/utf8"

	"execserver/filesystem"
	"execserver/internal/base64"
	"execserver/protocol"
	"execserver/rpc"
)

// file makes a method about one file of a function that may take its time and
// returns the result; the path it gets is native.
func file(do func(c *connection, r *rpc.Request, path string, p protocol.File) (any, error)) func(*connection, *rpc.Request, protocol.File) {
	return func(c *connection, r *rpc.Request, p protocol.File) {
		path, err := p.Path.Native()
		if err != nil {
			r.Fail(protocol.Errorf(protocol.CodeInvalidRequest, "%s", err))
			return
		}
		if p.Sandbox != nil {
			r.Fail(protocol.Errorf(protocol.CodeInvalidRequest, "%s", errNoSandbox))
			return
		}
		r.Pool(func() {
			result, err := do(c, r, path, p)
			if err != nil {
				r.Fail(fileError(err))
				return
			}
			r.Reply(result)
		})
	}
}

// fileError gives an error of the file system its code and text on the wire
// (PROTOCOL.md, "Errors of files").
func fileError(err error) error {
	kind, text := filesystem.Classify(err)
	switch kind {
	case filesystem.NotFound:
		return protocol.Errorf(protocol.CodeNotFound, "%s", text)
	case filesystem.InvalidInput:
		return protocol.Errorf(protocol.CodeInvalidRequest, "%s", text)
	}
	return protocol.Errorf(protocol.CodeInternal, "%s", text)
}

func links(p protocol.File) filesystem.Links {
	if p.FollowSymlinks {
		return filesystem.Follow
	}
	return filesystem.NoFollow
}

func (c *connection) getMetadata(r *rpc.Request, path string, p protocol.File) (any, error) {
	m, err := filesystem.GetMetadata(r.Context(), path, links(p))
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
}

func (c *connection) readFile(r *rpc.Request, path string, p protocol.File) (any, error) {
	f, err := filesystem.Open(r.Context(), path, filesystem.ReadOptions{Links: links(p)})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := r.Reserve(base64.EncodedLen(int(f.Size())) + 64); err != nil {
		return nil, err
	}
	data := bytes.NewBuffer(make([]byte, 0, f.Size()+bytes.MinRead))
	if _, err := data.ReadFrom(f); err != nil {
		return nil, err
	}
	return protocol.ReadFileResult{Data: data.Bytes()}, nil
}

func (c *connection) readDirectory(r *rpc.Request, path string, p protocol.File) (any, error) {
	entries, err := filesystem.ReadDirectory(r.Context(), path)
	if err != nil {
		return nil, err
	}
	list := make([]protocol.DirectoryEntry, len(entries))
	for i, e := range entries {
		list[i] = protocol.DirectoryEntry{FileName: e.Name, IsDirectory: e.IsDirectory, IsFile: e.IsFile}
		if !utf8.ValidString(e.Name) {
			full := protocol.URIPath(filepath.Join(path, e.Name))
			list[i].Path = &full
		}
	}
	return protocol.ReadDirectoryResult{Entries: list}, nil
}

func (c *connection) canonicalize(r *rpc.Request, path string, p protocol.File) (any, error) {
	real, err := filesystem.Canonicalize(r.Context(), path)
	if err != nil {
		return nil, fmt.Errorf("canonicalize %s: %w", path, err)
	}
	return protocol.PathResult{Path: p.Path.WithNative(real)}, nil
}
