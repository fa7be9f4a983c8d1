package protocol

import (
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// MethodWalk lists a tree.
const MethodWalk = "fs/walk"

// ReadDirectoryResult is the answer to fs/readDirectory. Truncated is sent only
// when there was more than an answer may hold.
type ReadDirectoryResult struct {
	Entries   []DirectoryEntry `json:"entries"`
	Truncated bool             `json:"truncated,omitempty"`
}

// DirectoryEntry is one name in a directory. IsDirectory and IsFile are about
// what a symbolic link leads to; both are false for one that leads nowhere. A
// name that is not UTF-8 cannot be spelled in JSON: FileName then stands for it
// with U+FFFD, and Path is a URI that can be sent back.
type DirectoryEntry struct {
	FileName    string `json:"fileName"`
	IsDirectory bool   `json:"isDirectory"`
	IsFile      bool   `json:"isFile"`
	Path        *Path  `json:"path,omitempty"`
}

// AppendJSON implements Appender.
func (r ReadDirectoryResult) AppendJSON(b []byte) []byte {
	b = append(b, `{"entries":[`...)
	for i, e := range r.Entries {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"fileName":`...)
		b = appendString(b, e.FileName)
		b = append(b, `,"isDirectory":`...)
		b = strconv.AppendBool(b, e.IsDirectory)
		b = append(b, `,"isFile":`...)
		b = strconv.AppendBool(b, e.IsFile)
		if e.Path != nil {
			b = append(b, `,"path":`...)
			b = appendString(b, e.Path.wire)
		}
		b = append(b, '}')
	}
	b = append(b, ']')
	if r.Truncated {
		b = append(b, `,"truncated":true`...)
	}
	return append(b, '}')
}

// EncodedLen is how many bytes the entry takes in an answer, or a few more.
func (e DirectoryEntry) EncodedLen() int {
	n := stringLen(e.FileName) + len(`{"fileName":,"isDirectory":false,"isFile":false},`)
	if e.Path != nil {
		n += len(`,"path":`) + stringLen(e.Path.wire)
	}
	return n
}

// Values is how many JSON values the entry takes in an answer (see MaxValues).
func (e DirectoryEntry) Values() int {
	if e.Path != nil {
		return 5
	}
	return 4
}

// stringLen is how many bytes appendString appends at most.
func stringLen(s string) int {
	n := 2
	for _, r := range s {
		switch {
		case r == '"' || r == '\\' || r == '\n' || r == '\r' || r == '\t':
			n += 2
		case r < 0x20, r == '<', r == '>', r == '&', r == '\u2028', r == '\u2029', r == utf8.RuneError:
			n += len(`\u003c`)
		default:
			n += utf8.RuneLen(r)
		}
	}
	return n
}

// Walk are the params of fs/walk.
type Walk struct {
	Path    Path            `json:"path"`
	Options WalkOptions     `json:"options"`
	Sandbox json.RawMessage `json:"sandbox,omitempty"`
}

// WalkOptions bound a walk (PROTOCOL.md, "fs/walk").
type WalkOptions struct {
	MaxDepth                uint64 `json:"maxDepth"`
	MaxDirectories          uint64 `json:"maxDirectories"`
	MaxEntries              uint64 `json:"maxEntries"`
	FollowDirectorySymlinks bool   `json:"followDirectorySymlinks"`
	PruneHiddenDirectories  bool   `json:"pruneHiddenDirectories"`
}

// DecodeWalk decodes the params of fs/walk.
func DecodeWalk(raw json.RawMessage) (p Walk, err error) {
	err = decodeParams(raw, "FsWalkParams", func(f *fields) {
		p.Path = f.path("path")
		p.Options = parse(f, f.required("options"), decodeWalkOptions)
		p.Sandbox = f.sandbox()
	})
	return p, err
}

func decodeWalkOptions(raw json.RawMessage) (o WalkOptions, err error) {
	f, err := fieldsOf(raw, "WalkOptions")
	if err != nil {
		return o, err
	}
	o = WalkOptions{
		MaxDepth:                f.unsigned("maxDepth"),
		MaxDirectories:          f.unsigned("maxDirectories"),
		MaxEntries:              f.unsigned("maxEntries"),
		FollowDirectorySymlinks: f.bool("followDirectorySymlinks"),
		PruneHiddenDirectories:  f.boolOr("pruneHiddenDirectories", false),
	}
	return o, f.err
}

// WalkResult is the answer to fs/walk.
type WalkResult struct {
	Entries   []WalkEntry `json:"entries"`
	Errors    []WalkError `json:"errors"`
	Truncated bool        `json:"truncated"`
}

// WalkEntry is a file or directory that a walk has found.
type WalkEntry struct {
	Path Path     `json:"path"`
	Kind WalkKind `json:"kind"`
}

// WalkKind is what a WalkEntry is.
type WalkKind string

// The values of WalkKind.
const (
	WalkFile      WalkKind = "file"
	WalkDirectory WalkKind = "directory"
)

// WalkError is a directory that a walk could not read.
type WalkError struct {
	Path    Path   `json:"path"`
	Message string `json:"message"`
}

// EncodedLen is about how many bytes the answer takes on the wire.
func (r WalkResult) EncodedLen() int {
	n := 64
	for _, e := range r.Entries {
		n += stringLen(e.Path.wire) + 32
	}
	for _, e := range r.Errors {
		n += stringLen(e.Path.wire) + stringLen(e.Message) + 32
	}
	return n
}

// AppendJSON implements Appender.
func (r WalkResult) AppendJSON(b []byte) []byte {
	b = append(b, `{"entries":[`...)
	for i, e := range r.Entries {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"path":`...)
		b = appendString(b, e.Path.wire)
		b = append(b, `,"kind":"`...)
		b = append(b, e.Kind...)
		b = append(b, `"}`...)
	}
	b = append(b, `],"errors":[`...)
	for i, e := range r.Errors {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"path":`...)
		b = appendString(b, e.Path.wire)
		b = append(b, `,"message":`...)
		b = appendString(b, e.Message)
		b = append(b, '}')
	}
	b = append(b, `],"truncated":`...)
	b = strconv.AppendBool(b, r.Truncated)
	return append(b, '}')
}
