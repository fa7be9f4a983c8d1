package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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

// FileParams are the params of the methods with one path: fs/readFile, fs/getMetadata,
// fs/canonicalize, fs/readDirectory, fs/readLink and fs/parent. Sandbox is the requested
// sandbox, under either of its names; nil means none.
type FileParams struct {
	Path           Path            `json:"path"`
	FollowSymlinks bool            `json:"followSymlinks" wire:"optional=true"`
	Sandbox        json.RawMessage `json:"sandbox,omitempty" wire:"or=sandboxPolicy"`

	// Extensions (PROTOCOL.md, "Modes, times and links").
	Details bool `json:"details,omitempty" wire:"optional"` // of fs/getMetadata and fs/readDirectory
	Link    bool `json:"link,omitempty" wire:"optional"`    // of fs/getMetadata

	// After asks fs/readDirectory for a page: the entries in the order of their names, from
	// the beginning if it is "", and otherwise from Next of the page before.
	After *string `json:"after,omitempty"`
}

// Files returns the paths that the request is about, and its sandbox.
func (p FileParams) Files() ([]Path, json.RawMessage) { return []Path{p.Path}, p.Sandbox }

// ReadFileResult is the answer to fs/readFile.
type ReadFileResult struct {
	Data []byte `json:"dataBase64"`
}

// AppendJSON implements Appender.
func (r ReadFileResult) AppendJSON(b []byte) []byte {
	b = slices.Grow(b, Base64Len(len(r.Data))+64)
	b = append(b, `{"dataBase64":"`...)
	b = AppendBase64(b, r.Data)
	return append(b, `"}`...)
}

// WriteFileParams are the params of fs/writeFile. The content is in Data or in DataBase64;
// see Content.
type WriteFileParams struct {
	Path           Path            `json:"path"`
	DataBase64     Base64          `json:"dataBase64,omitempty" wire:"bulk"`
	Data           []byte          `json:"-"`
	FollowSymlinks bool            `json:"followSymlinks" wire:"optional=true"`
	Sandbox        json.RawMessage `json:"sandbox,omitempty" wire:"or=sandboxPolicy"`

	// Extensions (PROTOCOL.md, "fs/writeFile").
	ExpectedSHA256 *string   `json:"expectedSha256,omitempty"` // hex
	Mode           *FileMode `json:"mode,omitempty"`
	Replace        bool      `json:"replace,omitempty" wire:"optional"`
	FileTime
}

// WriteFileResult is the answer to fs/writeFile and fs/copy.
type WriteFileResult struct {
	// Replaced says, an extension, that a new file has taken the place of an existing one.
	Replaced bool `json:"replaced,omitempty"`
}

// Files returns the paths that the request is about, and its sandbox.
func (p WriteFileParams) Files() ([]Path, json.RawMessage) { return []Path{p.Path}, p.Sandbox }

func (p *WriteFileParams) check() error {
	if want := p.ExpectedSHA256; want != nil && (len(*want) != 64 || !isHexText(*want)) {
		return errors.New("expectedSha256 must be 64 hex digits")
	}
	return p.checkTime()
}

// AppendJSON implements Appender.
func (p WriteFileParams) AppendJSON(b []byte) []byte {
	head := p.appendHead(nil)
	b = slices.Grow(b, len(head)+len(p.DataBase64)+Base64Len(len(p.Data))+64)
	b = append(b, head...)
	b = append(b, `,"dataBase64":"`...)
	if p.DataBase64 != nil {
		b = append(b, p.DataBase64...)
	} else {
		b = AppendBase64(b, p.Data)
	}
	return append(b, `"}`...)
}

// appendHead appends the params up to their data.
func (p WriteFileParams) appendHead(b []byte) []byte {
	type plain WriteFileParams
	small := plain(p)
	small.DataBase64 = nil
	text, err := json.Marshal(small)
	if err != nil {
		panic("protocol: WriteFileParams.Sandbox is not JSON: " + err.Error())
	}
	return append(b, text[:len(text)-1]...)
}

// Content returns the content of the file. It decodes DataBase64 in place, which is invalid
// after it. The error has the code InvalidRequest.
func (p *WriteFileParams) Content() ([]byte, error) {
	if p.DataBase64 == nil {
		return p.Data, nil
	}
	return p.DataBase64.Decode()
}

// Base64 is data in standard base64. After DecodeParams it may point into the message, and
// has not been checked.
type Base64 []byte

// EncodeBase64 encodes data.
func EncodeBase64(data []byte) Base64 {
	return AppendBase64(make([]byte, 0, Base64Len(len(data))), data)
}

func (b *Base64) decode(raw json.RawMessage) (err error) {
	*b, err = textOf(raw)
	return err
}

// Decode decodes the data in place; b is invalid after it. The error has the code
// InvalidRequest.
func (b Base64) Decode() ([]byte, error) {
	data, err := decodeBase64InPlace(b)
	if err != nil {
		return nil, Errorf(CodeInvalidRequest, "invalid params: dataBase64: %s", err)
	}
	return data, nil
}

// FileMode is the mode of a file in Unix numbers: the permissions, and the three bits
// above them.
type FileMode uint32

const maxFileMode = 0o7777

func (m *FileMode) decode(raw json.RawMessage) error {
	n, err := decodeUnsigned(raw)
	if err == nil && n > maxFileMode {
		return fmt.Errorf("must not exceed %d (octal %o)", maxFileMode, maxFileMode)
	}
	*m = FileMode(n)
	return err
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
	SHA256 *string `json:"sha256"` // of the current content, in hex; nil if there is no file
}

// CreateDirectoryParams are the params of fs/createDirectory.
type CreateDirectoryParams struct {
	Path           Path            `json:"path"`
	Recursive      bool            `json:"recursive" wire:"optional=true"`
	FollowSymlinks bool            `json:"followSymlinks" wire:"optional=true"`
	Sandbox        json.RawMessage `json:"sandbox,omitempty" wire:"or=sandboxPolicy"`

	Mode *FileMode `json:"mode,omitempty"` // an extension
}

// Files returns the paths that the request is about, and its sandbox.
func (p CreateDirectoryParams) Files() ([]Path, json.RawMessage) { return []Path{p.Path}, p.Sandbox }

// RemoveParams are the params of fs/remove.
type RemoveParams struct {
	Path           Path            `json:"path"`
	Recursive      bool            `json:"recursive" wire:"optional=true"`
	Force          bool            `json:"force" wire:"optional=true"`
	FollowSymlinks bool            `json:"followSymlinks" wire:"optional=true"`
	Sandbox        json.RawMessage `json:"sandbox,omitempty" wire:"or=sandboxPolicy"`
}

// Files returns the paths that the request is about, and its sandbox.
func (p RemoveParams) Files() ([]Path, json.RawMessage) { return []Path{p.Path}, p.Sandbox }

// CopyParams are the params of fs/copy.
type CopyParams struct {
	SourcePath      Path            `json:"sourcePath"`
	DestinationPath Path            `json:"destinationPath"`
	Recursive       bool            `json:"recursive"`
	Sandbox         json.RawMessage `json:"sandbox,omitempty" wire:"or=sandboxPolicy"`
}

// Files returns the paths that the request is about, and its sandbox.
func (p CopyParams) Files() ([]Path, json.RawMessage) {
	return []Path{p.SourcePath, p.DestinationPath}, p.Sandbox
}

// RenameParams are the params of fs/rename, an extension.
type RenameParams struct {
	SourcePath      Path            `json:"sourcePath"`
	DestinationPath Path            `json:"destinationPath"`
	NoReplace       bool            `json:"noReplace" wire:"optional"`
	FollowSymlinks  bool            `json:"followSymlinks" wire:"optional=true"`
	Sandbox         json.RawMessage `json:"sandbox,omitempty" wire:"or=sandboxPolicy"`
}

// Files returns the paths that the request is about, and its sandbox.
func (p RenameParams) Files() ([]Path, json.RawMessage) {
	return []Path{p.SourcePath, p.DestinationPath}, p.Sandbox
}

// JoinParams are the params of fs/join. Path is relative, or absolute in the form of
// BasePath.
type JoinParams struct {
	BasePath Path            `json:"basePath"`
	Path     string          `json:"path" wire:"or=relativePath"`
	Sandbox  json.RawMessage `json:"sandbox,omitempty" wire:"or=sandboxPolicy"`
}

// Files returns the paths that the request is about, and its sandbox.
func (p JoinParams) Files() ([]Path, json.RawMessage) { return []Path{p.BasePath}, p.Sandbox }

// FileMetadata is the answer to fs/getMetadata. Kind, size and times describe the target
// of a symbolic link; IsSymlink describes the path itself.
type FileMetadata struct {
	IsDirectory  bool  `json:"isDirectory"`
	IsFile       bool  `json:"isFile"`
	IsSymlink    bool  `json:"isSymlink"`
	Size         int64 `json:"size"`         // bytes
	CreatedAtMs  int64 `json:"createdAtMs"`  // Unix milliseconds, 0 when unknown
	ModifiedAtMs int64 `json:"modifiedAtMs"` // Unix milliseconds

	*FileDetails // only if they were requested
}

// PathResult is the answer to fs/canonicalize, fs/join and fs/parent. The zero
// Path is null.
type PathResult struct {
	Path Path `json:"path"`
}
