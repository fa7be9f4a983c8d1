package protocol

import (
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// MethodWalk lists a tree.
const MethodWalk = "fs/walk"

// ReadDirectoryResult is the answer to fs/readDirectory. Truncated is sent only if there
// were more entries than an answer may hold, and Next only if the request asked for a page.
type ReadDirectoryResult struct {
	Entries   []DirectoryEntry `json:"entries"`             // without . and ..
	Truncated bool             `json:"truncated,omitempty"` // the directory has more entries than an answer may hold
	Next      *string          `json:"next,omitempty"`      // the value of after for the next page; absent on the last one
}

// DirectoryEntry is one name in a directory. IsDirectory and IsFile describe the target
// of a symbolic link; both are false for a dangling link. JSON cannot represent a name that
// is not UTF-8: then FileName contains U+FFFD, and Path is a URI that the client can use
// instead.
type DirectoryEntry struct {
	FileName    string `json:"fileName"` // with U+FFFD where it is not UTF-8
	IsDirectory bool   `json:"isDirectory"`
	IsFile      bool   `json:"isFile"`
	Path        *Path  `json:"path,omitempty"` // only if FileName is not UTF-8: a URI that the server accepts

	*EntryDetails // only if they were requested and are known
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
		if e.EntryDetails != nil {
			b = e.EntryDetails.appendMembers(b)
		}
		b = append(b, '}')
	}
	b = append(b, ']')
	if r.Truncated {
		b = append(b, `,"truncated":true`...)
	}
	if r.Next != nil {
		b = append(b, `,"next":`...)
		b = appendString(b, *r.Next)
	}
	return append(b, '}')
}

// EncodedLen returns the size of the entry in an answer, or a few bytes more.
func (e DirectoryEntry) EncodedLen() int {
	n := stringLen(e.FileName) + len(`{"fileName":,"isDirectory":false,"isFile":false},`)
	if e.Path != nil {
		n += len(`,"path":`) + stringLen(e.Path.wire)
	}
	if e.EntryDetails != nil {
		n += e.EntryDetails.encodedLen()
	}
	return n
}

// Values returns the number of JSON values of the entry in an answer (see MaxValues).
func (e DirectoryEntry) Values() int {
	n := 4
	if e.Path != nil {
		n++
	}
	if e.EntryDetails != nil {
		n += e.EntryDetails.values()
	}
	return n
}

// stringLen returns the largest number of bytes that appendString appends.
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

// WalkParams are the params of fs/walk.
type WalkParams struct {
	Path    Path            `json:"path"`    // the directory to begin with
	Options WalkOptions     `json:"options"` // the bounds
	Sandbox json.RawMessage `json:"sandbox,omitempty" wire:"or=sandboxPolicy"`
}

// Files returns the paths that the request is about, and its sandbox.
func (p WalkParams) Files() ([]Path, json.RawMessage) { return []Path{p.Path}, p.Sandbox }

// WalkOptions bound a walk (PROTOCOL.md, "File methods").
type WalkOptions struct {
	MaxDepth                uint64 `json:"maxDepth"`                                   // the number of levels below Path to read
	MaxDirectories          uint64 `json:"maxDirectories"`                             // the number of directories to read; not 0
	MaxEntries              uint64 `json:"maxEntries"`                                 // the number of names to examine; not 0
	FollowDirectorySymlinks bool   `json:"followDirectorySymlinks"`                    // enter directories through symbolic links
	PruneHiddenDirectories  bool   `json:"pruneHiddenDirectories" wire:"absent=false"` // do not enter directories whose names begin with a dot
}

// WalkResult is the answer to fs/walk.
type WalkResult struct {
	Entries   []WalkEntry `json:"entries"`   // level by level, each directory in the byte order of its names
	Errors    []WalkError `json:"errors"`    // the directories that the server could not read
	Truncated bool        `json:"truncated"` // a bound left something out
}

// WalkEntry is a file or directory in the result of a walk.
type WalkEntry struct {
	Path Path     `json:"path"`
	Kind WalkKind `json:"kind"`
}

// WalkKind is the kind of a WalkEntry.
type WalkKind string

// The values of WalkKind.
const (
	WalkFile      WalkKind = "file"
	WalkDirectory WalkKind = "directory"
)

// WalkError is a directory that a walk could not read.
type WalkError struct {
	Path    Path   `json:"path"`
	Message string `json:"message"` // why
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
