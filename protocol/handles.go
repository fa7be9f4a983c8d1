package protocol

import (
	"encoding/json"
	"fmt"
	"strconv"

	"execserver/internal/base64"
)

// Methods about open files (PROTOCOL.md, "File handles").
const (
	MethodOpen       = "fs/open"
	MethodReadBlock  = "fs/readBlock"
	MethodWriteBlock = "fs/writeBlock"
	MethodClose      = "fs/close"
)

// Open are the params of fs/open.
type Open struct {
	HandleID string          `json:"handleId"` // chosen by the client
	Path     Path            `json:"path"`
	Mode     OpenMode        `json:"mode"`
	Sandbox  json.RawMessage `json:"sandbox,omitempty"`
}

// OpenMode says what a handle is for.
type OpenMode string

// The values of OpenMode.
const (
	OpenRead    OpenMode = "read"
	OpenReplace OpenMode = "replace" // creates the file, or empties it
)

// DecodeOpen decodes the params of fs/open.
func DecodeOpen(raw json.RawMessage) (p Open, err error) {
	err = decodeParams(raw, "FsOpenParams", func(f *fields) {
		p.HandleID = f.identifier("handleId")
		p.Path = f.path("path")
		p.Mode = OpenRead
		if raw := f.get("mode"); raw != nil {
			p.Mode = parse(f, raw, decodeOpenMode)
		}
		p.Sandbox = f.sandbox()
	})
	return p, err
}

func decodeOpenMode(raw json.RawMessage) (OpenMode, error) {
	s, err := decodeString(raw)
	if err != nil {
		return "", err
	}
	switch mode := OpenMode(s); mode {
	case OpenRead, OpenReplace:
		return mode, nil
	}
	return "", fmt.Errorf("unknown variant `%s`, expected `read` or `replace`", s)
}

// OpenResult is the answer to fs/open.
type OpenResult struct {
	HandleID string `json:"handleId"`
}

// ReadBlock are the params of fs/readBlock.
type ReadBlock struct {
	HandleID string `json:"handleId"`
	Offset   uint64 `json:"offset"`
	Len      uint64 `json:"len"`
}

// DecodeReadBlock decodes the params of fs/readBlock.
func DecodeReadBlock(raw json.RawMessage) (p ReadBlock, err error) {
	err = decodeParams(raw, "FsReadBlockParams", func(f *fields) {
		p.HandleID = f.identifier("handleId")
		p.Offset = f.unsigned("offset")
		p.Len = f.unsigned("len")
	})
	return p, err
}

// ReadBlockResult is the answer to fs/readBlock. EOF says that fewer bytes came
// than were asked for.
type ReadBlockResult struct {
	Chunk []byte
	EOF   bool
}

// AppendJSON implements Appender.
func (r ReadBlockResult) AppendJSON(b []byte) []byte {
	b = append(b, `{"chunk":"`...)
	b = base64.AppendEncode(b, r.Chunk)
	b = append(b, `","eof":`...)
	b = strconv.AppendBool(b, r.EOF)
	return append(b, '}')
}

// WriteBlock are the params of fs/writeBlock.
type WriteBlock struct {
	HandleID string
	Offset   uint64
	Chunk    []byte
}

// DecodeWriteBlock decodes the params of fs/writeBlock. Chunk is a copy.
func DecodeWriteBlock(raw json.RawMessage) (p WriteBlock, err error) {
	err = decodeParams(raw, "FsWriteBlockParams", func(f *fields) {
		p.HandleID = f.identifier("handleId")
		p.Offset = f.unsigned("offset")
		p.Chunk = f.base64("chunk")
	})
	return p, err
}

// Close are the params of fs/close.
type Close struct {
	HandleID string `json:"handleId"`
}

// DecodeClose decodes the params of fs/close.
func DecodeClose(raw json.RawMessage) (p Close, err error) {
	err = decodeParams(raw, "FsCloseParams", func(f *fields) {
		p.HandleID = f.identifier("handleId")
	})
	return p, err
}
