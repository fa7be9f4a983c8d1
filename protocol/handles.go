package protocol

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// Methods about open files (PROTOCOL.md, "File handles").
const (
	MethodOpen       = "fs/open"
	MethodReadBlock  = "fs/readBlock"
	MethodWriteBlock = "fs/writeBlock"
	MethodClose      = "fs/close"
)

// OpenParams are the params of fs/open.
type OpenParams struct {
	HandleID string          `json:"handleId" wire:"identifier"` // chosen by the client
	Path     Path            `json:"path"`
	Mode     OpenMode        `json:"mode,omitempty" wire:"absent=read,enum=read|replace|update"`
	Sandbox  json.RawMessage `json:"sandbox,omitempty" wire:"or=sandboxPolicy"`

	CreateMode *FileMode `json:"createMode,omitempty"` // of a file that the request creates; an extension
}

func (p *OpenParams) check() error {
	if p.CreateMode != nil && *p.CreateMode > 0o777 {
		return fmt.Errorf("createMode must not exceed %d (octal 777)", 0o777)
	}
	return nil
}

// Files returns the paths that the request is about, and its sandbox.
func (p OpenParams) Files() ([]Path, json.RawMessage) { return []Path{p.Path}, p.Sandbox }

// OpenMode says whether a handle reads or writes.
type OpenMode string

// The values of OpenMode.
const (
	OpenRead    OpenMode = "read"
	OpenReplace OpenMode = "replace" // creates the file, or empties it
	OpenUpdate  OpenMode = "update"  // creates the file, or keeps its content; an extension
)

// OpenResult is the answer to fs/open.
type OpenResult struct {
	HandleID string `json:"handleId"`
}

// ReadBlockParams are the params of fs/readBlock.
type ReadBlockParams struct {
	HandleID string `json:"handleId" wire:"identifier"`
	Offset   uint64 `json:"offset"`
	Len      uint64 `json:"len"`
}

// ReadBlockResult is the answer to fs/readBlock. EOF says that the block is shorter than
// the request.
type ReadBlockResult struct {
	Chunk []byte `json:"chunk"`
	EOF   bool   `json:"eof"`
}

// AppendJSON implements Appender.
func (r ReadBlockResult) AppendJSON(b []byte) []byte {
	b = slices.Grow(b, Base64Len(len(r.Chunk))+64)
	b = append(b, `{"chunk":"`...)
	b = AppendBase64(b, r.Chunk)
	b = append(b, `",`...)
	return append(r.appendEOF(b), '}')
}

func (r ReadBlockResult) appendEOF(b []byte) []byte {
	return strconv.AppendBool(append(b, `"eof":`...), r.EOF)
}

// WriteBlockParams are the params of fs/writeBlock.
type WriteBlockParams struct {
	HandleID string `json:"handleId" wire:"identifier"`
	Offset   uint64 `json:"offset"`
	Chunk    []byte `json:"chunk" wire:"bulk"`
}

// AppendJSON implements Appender.
func (p WriteBlockParams) AppendJSON(b []byte) []byte {
	b = slices.Grow(b, Base64Len(len(p.Chunk))+256)
	b = p.appendHead(b)
	b = append(b, `,"chunk":"`...)
	b = AppendBase64(b, p.Chunk)
	return append(b, `"}`...)
}

// appendHead appends the params up to their chunk.
func (p WriteBlockParams) appendHead(b []byte) []byte {
	b = append(b, `{"handleId":`...)
	b = appendString(b, p.HandleID)
	b = append(b, `,"offset":`...)
	return strconv.AppendUint(b, p.Offset, 10)
}

// CloseParams are the params of fs/close.
type CloseParams struct {
	HandleID string `json:"handleId" wire:"identifier"`
}
