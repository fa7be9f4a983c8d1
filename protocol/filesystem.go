package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
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

	// Extensions (EXTENSIONS.md, "fsMetadata").

	Details bool `json:"details,omitempty" wire:"optional"` // for fs/getMetadata and fs/readDirectory: add the members of FileDetails or EntryDetails
	Link    bool `json:"link,omitempty" wire:"optional"`    // for fs/getMetadata: describe a link itself, not its target

	After *string `json:"after,omitempty"` // for fs/readDirectory: return one page, the entries whose names follow this one; "" asks for the first page
}

// Files returns the paths that the request is about, and its sandbox.
func (p FileParams) Files() ([]Path, json.RawMessage) { return []Path{p.Path}, p.Sandbox }

// ReadFileResult is the answer to fs/readFile.
type ReadFileResult struct {
	Data []byte `json:"dataBase64"` // the content
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
	DataBase64     Base64          `json:"dataBase64,omitempty" wire:"bulk"` // the content
	Data           []byte          `json:"-"`
	FollowSymlinks bool            `json:"followSymlinks" wire:"optional=true"`
	Sandbox        json.RawMessage `json:"sandbox,omitempty" wire:"or=sandboxPolicy"`

	// Extensions (EXTENSIONS.md, "fsWriteFileCondition", "fsWriteFileMode", "fsWriteFileReplace").

	ExpectedSHA256 *string   `json:"expectedSha256,omitempty"`          // write only if the current content has this digest, 64 hex digits
	Mode           *FileMode `json:"mode,omitempty"`                    // of the file, whatever the umask; nil keeps that of an existing file
	Replace        bool      `json:"replace,omitempty" wire:"optional"` // replace an existing file by a rename of a new one
	FileTime
}

// WriteFileResult is the answer to fs/writeFile and fs/copy.
type WriteFileResult struct {
	// Replaced, an extension, is set if a new file has replaced an existing one.
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

// Content returns the content of the file. It decodes DataBase64 in place; do not use that
// afterwards. The error has the code InvalidRequest.
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

// FileMode is the mode of a file as on Unix: the permissions and the set-user-ID,
// set-group-ID and sticky bits.
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

// FileChanged is the data of an error with the code CodeFileChanged.
type FileChanged struct {
	SHA256 *string `json:"sha256"` // the digest of the current content in hex; null if there is no file
}

// CreateDirectoryParams are the params of fs/createDirectory.
type CreateDirectoryParams struct {
	Path           Path            `json:"path"`
	Recursive      bool            `json:"recursive" wire:"optional=true"` // create missing parents, and accept an existing directory
	FollowSymlinks bool            `json:"followSymlinks" wire:"optional=true"`
	Sandbox        json.RawMessage `json:"sandbox,omitempty" wire:"or=sandboxPolicy"`

	Mode *FileMode `json:"mode,omitempty"` // an extension: of a new directory, whatever the umask
}

// Files returns the paths that the request is about, and its sandbox.
func (p CreateDirectoryParams) Files() ([]Path, json.RawMessage) { return []Path{p.Path}, p.Sandbox }

// RemoveParams are the params of fs/remove.
type RemoveParams struct {
	Path           Path            `json:"path"`
	Recursive      bool            `json:"recursive" wire:"optional=true"` // remove a directory with everything in it
	Force          bool            `json:"force" wire:"optional=true"`     // succeed if there is no such file
	FollowSymlinks bool            `json:"followSymlinks" wire:"optional=true"`
	Sandbox        json.RawMessage `json:"sandbox,omitempty" wire:"or=sandboxPolicy"`
}

// Files returns the paths that the request is about, and its sandbox.
func (p RemoveParams) Files() ([]Path, json.RawMessage) { return []Path{p.Path}, p.Sandbox }

// CopyParams are the params of fs/copy.
type CopyParams struct {
	SourcePath      Path            `json:"sourcePath"`
	DestinationPath Path            `json:"destinationPath"`
	Recursive       bool            `json:"recursive"` // copy a directory with everything in it
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
	NoReplace       bool            `json:"noReplace" wire:"optional"` // fail if the destination exists
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
	BasePath Path            `json:"basePath"`                    // the path to begin with
	Path     string          `json:"path" wire:"or=relativePath"` // relative, or absolute in the form of BasePath
	Sandbox  json.RawMessage `json:"sandbox,omitempty" wire:"or=sandboxPolicy"`
}

// Files returns the paths that the request is about, and its sandbox.
func (p JoinParams) Files() ([]Path, json.RawMessage) { return []Path{p.BasePath}, p.Sandbox }

// FileMetadata is the answer to fs/getMetadata. Kind, size and times describe the target
// of a symbolic link; IsSymlink describes the path itself.
type FileMetadata struct {
	IsDirectory  bool  `json:"isDirectory"`
	IsFile       bool  `json:"isFile"`
	IsSymlink    bool  `json:"isSymlink"`    // the path itself is a symbolic link
	Size         int64 `json:"size"`         // in bytes
	CreatedAtMs  int64 `json:"createdAtMs"`  // the creation time in Unix milliseconds; 0 if unknown
	ModifiedAtMs int64 `json:"modifiedAtMs"` // the modification time in Unix milliseconds; 0 if unknown

	*FileDetails // only if they were requested
}

// PathResult is the answer to fs/canonicalize, fs/join and fs/parent. The zero
// Path is null.
type PathResult struct {
	Path Path `json:"path"` // null if there is none
}

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
	Mode     OpenMode        `json:"mode,omitempty" wire:"absent=read,enum=read|replace|update"` // whether to read or to write
	Sandbox  json.RawMessage `json:"sandbox,omitempty" wire:"or=sandboxPolicy"`

	CreateMode *FileMode `json:"createMode,omitempty"` // an extension: the mode of a file that the request creates
}

func (p *OpenParams) check() error {
	if p.CreateMode != nil && *p.CreateMode > 0o777 {
		return fmt.Errorf("createMode must not exceed %d (octal 777)", 0o777)
	}
	return nil
}

// Files returns the paths that the request is about, and its sandbox.
func (p OpenParams) Files() ([]Path, json.RawMessage) { return []Path{p.Path}, p.Sandbox }

// OpenMode is the access for which a handle is opened.
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
	Len      uint64 `json:"len"` // the number of bytes to read
}

// ReadBlockResult is the answer to fs/readBlock. EOF is set if the block is shorter than
// requested.
type ReadBlockResult struct {
	Chunk []byte `json:"chunk"`
	EOF   bool   `json:"eof"` // the block is shorter than the request
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

// Methods and notifications about changes of files (PROTOCOL.md, "Watching"; EXTENSIONS.md, "fsWatch").
const (
	MethodWatchMissing = "fs/watchMissing"
	MethodWatch        = "fs/watch"
	MethodUnwatch      = "fs/unwatch"

	NotificationMissingChanged = "fs/missingChanged"
	NotificationChanged        = "fs/changed"
)

// WatchMissingParams are the params of fs/watchMissing.
type WatchMissingParams struct {
	WatchID uint64 `json:"watchId"` // greater than all earlier ones
	Missing []Path `json:"missing"` // the files that do not exist yet
	Present *Path  `json:"present"` // a file that exists; the server reports its change, too
}

// WatchMissingResult is the answer to fs/watchMissing.
type WatchMissingResult struct {
	Watching bool `json:"watching"` // false if a notification will not follow
}

// MissingChangedParams are the params of fs/missingChanged.
type MissingChangedParams struct {
	WatchID uint64 `json:"watchId"`
}

// WatchParams are the params of fs/watch, an extension. If Cursor is nil, the watch reports
// only new events.
type WatchParams struct {
	WatchID string          `json:"watchId" wire:"identifier"` // chosen by the client
	Path    Path            `json:"path"`                      // the directory to watch
	Cursor  *uint64         `json:"cursor,omitempty"`          // the last event that the client has; nil means to report from now on
	Sandbox json.RawMessage `json:"sandbox,omitempty" wire:"or=sandboxPolicy"`
}

// Files returns the paths that the request is about, and its sandbox.
func (p WatchParams) Files() ([]Path, json.RawMessage) { return []Path{p.Path}, p.Sandbox }

// WatchResult is the answer to fs/watch.
type WatchResult struct {
	Cursor uint64 `json:"cursor"` // the cursor of the event after which the watch continues
}

// UnwatchParams are the params of fs/unwatch.
type UnwatchParams struct {
	WatchID string `json:"watchId" wire:"identifier"`
}

// ChangedParams are the params of fs/changed.
type ChangedParams struct {
	WatchID string        `json:"watchId"`
	Events  []ChangeEvent `json:"events"` // in the order of their cursors
}

// ChangeEvent is one change below a watched directory. Cursors count from 1
// without gaps.
type ChangeEvent struct {
	Cursor    uint64     `json:"cursor"`
	Kind      ChangeKind `json:"kind"`
	Path      *Path      `json:"path,omitempty"`      // absent for an overflow
	Unwatched []Path     `json:"unwatched,omitempty"` // only for an overflow: the paths below which changes were missed
}

// ChangeKind is the kind of a change.
type ChangeKind string

// The values of ChangeKind.
const (
	ChangeCreated  ChangeKind = "created"  // the name is new, or stands for another file now
	ChangeModified ChangeKind = "modified" // the content or the attributes have changed
	ChangeRemoved  ChangeKind = "removed"  // the name is gone, with everything below it
	ChangeOverflow ChangeKind = "overflow" // changes were missed, or may be from now on
)
