package protocol

import (
	"encoding/json"
	"fmt"
	"slices"

	"execserver/internal/base64"
)

// Methods about files (PROTOCOL.md, "Files").
const (
	MethodReadFile        = "fs/readFile"
	MethodWriteFile       = "fs/writeFile"
	MethodCreateDirectory = "fs/createDirectory"
	MethodGetMetadata     = "fs/getMetadata"
	MethodCanonicalize    = "fs/canonicalize"
	MethodReadDirectory   = "fs/readDirectory"
	MethodRemove          = "fs/remove"
	MethodCopy            = "fs/copy"
	MethodRename          = "fs/rename"
	MethodJoin            = "fs/join"
	MethodParent          = "fs/parent"
)

// File are the params of the methods that take one path: fs/readFile,
// fs/getMetadata, fs/canonicalize, fs/readDirectory and fs/parent. Sandbox is
// what the client wants enforced, under whichever name its release gives it; nil
// means nothing.
type File struct {
	Path           Path            `json:"path"`
	FollowSymlinks bool            `json:"followSymlinks"`
	Sandbox        json.RawMessage `json:"sandbox,omitempty"`
}

// DecodeFile decodes the params of a method that takes one path.
func DecodeFile(raw json.RawMessage) (p File, err error) {
	err = decodeParams(raw, "FsParams", func(f *fields) {
		p.Path = f.path("path")
		p.FollowSymlinks = f.optionalBool("followSymlinks", true)
		p.Sandbox = f.sandbox()
	})
	return p, err
}

// sandbox reads what every method that takes a path may have.
func (f *fields) sandbox() json.RawMessage {
	if raw := f.raw("sandbox"); raw != nil {
		return raw
	}
	return f.raw("sandboxPolicy")
}

// ReadFileResult is the answer to fs/readFile.
type ReadFileResult struct {
	Data []byte
}

// AppendJSON implements Appender.
func (r ReadFileResult) AppendJSON(b []byte) []byte {
	b = slices.Grow(b, base64.EncodedLen(len(r.Data))+64)
	b = append(b, `{"dataBase64":"`...)
	b = base64.AppendEncode(b, r.Data)
	return append(b, `"}`...)
}

// WriteFile are the params of fs/writeFile.
type WriteFile struct {
	Path           Path
	DataBase64     []byte // as it came, unchecked; it may be a part of the message
	FollowSymlinks bool
	Sandbox        json.RawMessage

	// Extensions (PROTOCOL.md, "fs/writeFile").
	ExpectedSHA256 string // hex; "" when absent
	Mode           *uint32
}

// maxMode is the largest mode of a file: the permissions, and the three bits
// above them.
const maxMode = 0o7777

// DecodeWriteFile decodes the params of fs/writeFile, but for the data: that may
// take long, and what is wrong with it is another error.
func DecodeWriteFile(raw json.RawMessage) (p WriteFile, err error) {
	err = decodeParams(raw, "FsWriteFileParams", func(f *fields) {
		p.Path = f.path("path")
		p.DataBase64 = f.text("dataBase64")
		p.FollowSymlinks = f.optionalBool("followSymlinks", true)
		p.Sandbox = f.sandbox()
		if want := f.optionalString("expectedSha256"); want != nil {
			p.ExpectedSHA256 = *want
			if len(*want) != 64 || !isHexText(*want) {
				f.fail(fmt.Errorf("expectedSha256 must be 64 hex digits"))
			}
		}
		if mode := f.optionalUnsigned("mode"); mode != nil {
			if *mode > maxMode {
				f.fail(fmt.Errorf("mode must not exceed %d (octal %o)", maxMode, maxMode))
			}
			bits := uint32(*mode)
			p.Mode = &bits
		}
	})
	return p, err
}

// Data decodes the content into the memory of DataBase64, which has no meaning
// any more. The error has the code InvalidRequest.
func (p WriteFile) Data() ([]byte, error) {
	data, err := base64.Decode(p.DataBase64)
	if err != nil {
		return nil, Errorf(CodeInvalidRequest, "fs/writeFile requires valid base64 dataBase64: %s", err)
	}
	return data, nil
}

func isHexText(s string) bool {
	for i := range len(s) {
		if !isHex(s[i]) {
			return false
		}
	}
	return true
}

// FileChanged is the data of an error with the code FileChanged.
type FileChanged struct {
	SHA256 *string `json:"sha256"` // of the content there is, in hex; nil: there is no file
}

// CreateDirectory are the params of fs/createDirectory.
type CreateDirectory struct {
	Path           Path            `json:"path"`
	Recursive      bool            `json:"recursive"`
	FollowSymlinks bool            `json:"followSymlinks"`
	Sandbox        json.RawMessage `json:"sandbox,omitempty"`
}

// DecodeCreateDirectory decodes the params of fs/createDirectory.
func DecodeCreateDirectory(raw json.RawMessage) (p CreateDirectory, err error) {
	err = decodeParams(raw, "FsCreateDirectoryParams", func(f *fields) {
		p.Path = f.path("path")
		p.Recursive = f.optionalBool("recursive", true)
		p.FollowSymlinks = f.optionalBool("followSymlinks", true)
		p.Sandbox = f.sandbox()
	})
	return p, err
}

// Remove are the params of fs/remove.
type Remove struct {
	Path           Path            `json:"path"`
	Recursive      bool            `json:"recursive"`
	Force          bool            `json:"force"`
	FollowSymlinks bool            `json:"followSymlinks"`
	Sandbox        json.RawMessage `json:"sandbox,omitempty"`
}

// DecodeRemove decodes the params of fs/remove.
func DecodeRemove(raw json.RawMessage) (p Remove, err error) {
	err = decodeParams(raw, "FsRemoveParams", func(f *fields) {
		p.Path = f.path("path")
		p.Recursive = f.optionalBool("recursive", true)
		p.Force = f.optionalBool("force", true)
		p.FollowSymlinks = f.optionalBool("followSymlinks", true)
		p.Sandbox = f.sandbox()
	})
	return p, err
}

// Copy are the params of fs/copy.
type Copy struct {
	SourcePath      Path            `json:"sourcePath"`
	DestinationPath Path            `json:"destinationPath"`
	Recursive       bool            `json:"recursive"`
	Sandbox         json.RawMessage `json:"sandbox,omitempty"`
}

// DecodeCopy decodes the params of fs/copy.
func DecodeCopy(raw json.RawMessage) (p Copy, err error) {
	err = decodeParams(raw, "FsCopyParams", func(f *fields) {
		p.SourcePath = f.path("sourcePath")
		p.DestinationPath = f.path("destinationPath")
		p.Recursive = f.bool("recursive")
		p.Sandbox = f.sandbox()
	})
	return p, err
}

// Rename are the params of fs/rename, an extension.
type Rename struct {
	SourcePath      Path            `json:"sourcePath"`
	DestinationPath Path            `json:"destinationPath"`
	NoReplace       bool            `json:"noReplace"`
	FollowSymlinks  bool            `json:"followSymlinks"`
	Sandbox         json.RawMessage `json:"sandbox,omitempty"`
}

// DecodeRename decodes the params of fs/rename.
func DecodeRename(raw json.RawMessage) (p Rename, err error) {
	err = decodeParams(raw, "FsRenameParams", func(f *fields) {
		p.SourcePath = f.path("sourcePath")
		p.DestinationPath = f.path("destinationPath")
		p.NoReplace = f.optionalBool("noReplace", false)
		p.FollowSymlinks = f.optionalBool("followSymlinks", true)
		p.Sandbox = f.sandbox()
	})
	return p, err
}

// Join are the params of fs/join. Path is relative, or absolute in the form of
// BasePath.
type Join struct {
	BasePath Path            `json:"basePath"`
	Path     string          `json:"path"`
	Sandbox  json.RawMessage `json:"sandbox,omitempty"`
}

// DecodeJoin decodes the params of fs/join, under either of the names that its
// second path has had.
func DecodeJoin(raw json.RawMessage) (p Join, err error) {
	err = decodeParams(raw, "FsJoinParams", func(f *fields) {
		p.BasePath = f.path("basePath")
		name := "path"
		if f.get(name) == nil && f.get("relativePath") != nil {
			name = "relativePath"
		}
		p.Path = f.string(name)
		p.Sandbox = f.sandbox()
	})
	return p, err
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

// PathResult is the answer to fs/canonicalize, fs/join and fs/parent. The zero
// Path is null.
type PathResult struct {
	Path Path `json:"path"`
}
