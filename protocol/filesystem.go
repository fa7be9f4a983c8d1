package protocol

import (
	"encoding/json"

	"execserver/internal/base64"
)

// Methods about files (PROTOCOL.md, "Files").
const (
	MethodReadFile      = "fs/readFile"
	MethodGetMetadata   = "fs/getMetadata"
	MethodCanonicalize  = "fs/canonicalize"
	MethodReadDirectory = "fs/readDirectory"
)

// File are the params of the methods that take one path: fs/readFile,
// fs/getMetadata, fs/canonicalize and fs/readDirectory. Sandbox is what the
// client wants enforced, under whichever name its release gives it; nil means
// nothing.
type File struct {
	Path           Path            `json:"path"`
	FollowSymlinks bool            `json:"followSymlinks"`
	Sandbox        json.RawMessage `json:"sandbox,omitempty"`
}

// DecodeFile decodes the params of a method that takes one path.
func DecodeFile(raw json.RawMessage) (p File, err error) {
	err = decodeParams(raw, "FsParams", func(f *fields) {
		p.Path = f.path("path")
		p.FollowSymlinks = true
		if raw := f.optional("followSymlinks"); raw != nil {
			p.FollowSymlinks = parse(f, raw, decodeBool)
		}
		p.Sandbox = f.raw("sandbox")
		if p.Sandbox == nil {
			p.Sandbox = f.raw("sandboxPolicy")
		}
	})
	return p, err
}

// ReadFileResult is the answer to fs/readFile.
type ReadFileResult struct {
	Data []byte
}

// AppendJSON implements Appender.
func (r ReadFileResult) AppendJSON(b []byte) []byte {
	b = append(b, `{"dataBase64":"`...)
	b = base64.AppendEncode(b, r.Data)
	return append(b, `"}`...)
}

// FileMetadata is a file as fs/getMetadata describes it. Kind, size and times are
// those of what a symbolic link leads to; IsSymlink is about the path itself.
type FileMetadata struct {
	IsDirectory  bool  `json:"isDirectory"`
	IsFile       bool  `json:"isFile"`
	IsSymlink    bool  `json:"isSymlink"`
	Size         int64 `json:"size"`         // bytes
	CreatedAtMs  int64 `json:"createdAtMs"`  // Unix milliseconds, 0 when unknown
	ModifiedAtMs int64 `json:"modifiedAtMs"` // Unix milliseconds
}

// PathResult is the answer to fs/canonicalize.
type PathResult struct {
	Path Path `json:"path"`
}

// ReadDirectoryResult is the answer to fs/readDirectory.
type ReadDirectoryResult struct {
	Entries []DirectoryEntry `json:"entries"`
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
