package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Methods about modes, times and links, extensions with the capability fsMetadata
// (EXTENSIONS.md, "fsMetadata").
const (
	MethodSetMetadata = "fs/setMetadata"
	MethodSymlink     = "fs/symlink"
	MethodReadLink    = "fs/readLink"
)

// FileKind is the kind of a file.
type FileKind string

// The values of FileKind.
const (
	KindFile        FileKind = "file"
	KindDirectory   FileKind = "directory"
	KindSymlink     FileKind = "symlink"
	KindFIFO        FileKind = "fifo"
	KindSocket      FileKind = "socket"
	KindCharDevice  FileKind = "charDevice"
	KindBlockDevice FileKind = "blockDevice"
)

// FileDetails are the members that `details` adds to the answer to fs/getMetadata.
type FileDetails struct {
	Kind       FileKind `json:"kind"`
	Mode       FileMode `json:"mode"`
	UID        *uint32  `json:"uid,omitempty"` // the owner; absent on systems without numeric user ids
	GID        *uint32  `json:"gid,omitempty"` // the group; absent on systems without numeric group ids
	ModifiedNs uint32   `json:"modifiedNs"`    // the nanoseconds after modifiedAtMs
	LinkTarget          // of a link that the request describes itself
}

// EntryDetails are the members that `details` adds to an entry of fs/readDirectory. They
// describe a link itself.
type EntryDetails struct {
	Kind         FileKind `json:"kind"`
	Mode         FileMode `json:"mode"`
	Size         int64    `json:"size"`         // in bytes
	ModifiedAtMs int64    `json:"modifiedAtMs"` // the modification time in Unix milliseconds
	ModifiedNs   uint32   `json:"modifiedNs"`   // the nanoseconds after ModifiedAtMs
	LinkTarget
}

// appendMembers appends the details to an object that has other members.
func (d *EntryDetails) appendMembers(b []byte) []byte {
	b = append(b, `,"kind":"`...)
	b = append(b, d.Kind...)
	b = append(b, `","mode":`...)
	b = strconv.AppendUint(b, uint64(d.Mode), 10)
	b = append(b, `,"size":`...)
	b = strconv.AppendInt(b, d.Size, 10)
	b = append(b, `,"modifiedAtMs":`...)
	b = strconv.AppendInt(b, d.ModifiedAtMs, 10)
	b = append(b, `,"modifiedNs":`...)
	b = strconv.AppendUint(b, uint64(d.ModifiedNs), 10)
	if d.Target != nil {
		b = append(b, `,"target":`...)
		b = appendString(b, *d.Target)
	}
	if d.TargetBase64 != nil {
		b = append(b, `,"targetBase64":"`...)
		b = AppendBase64(b, d.TargetBase64)
		b = append(b, '"')
	}
	return b
}

// encodedLen returns the largest number of bytes that appendMembers appends.
func (d *EntryDetails) encodedLen() int {
	n := len(`,"kind":"blockDevice","mode":4095,"size":,"modifiedAtMs":,"modifiedNs":999999`) + 2*20
	if d.Target != nil {
		n += len(`,"target":`) + stringLen(*d.Target)
	}
	if d.TargetBase64 != nil {
		n += len(`,"targetBase64":""`) + Base64Len(len(d.TargetBase64))
	}
	return n
}

func (d *EntryDetails) values() int {
	n := 5
	if d.Target != nil {
		n++
	}
	if d.TargetBase64 != nil {
		n++
	}
	return n
}

// LinkTarget is the text of a symbolic link. JSON cannot represent a text that is not UTF-8:
// then Target contains U+FFFD, and TargetBase64 the bytes. Nil means no text.
type LinkTarget struct {
	Target       *string `json:"target,omitempty"`                       // the text, with U+FFFD where it is not UTF-8
	TargetBase64 []byte  `json:"targetBase64,omitempty" wire:"optional"` // the text, if it is not UTF-8
}

// NewLinkTarget converts the text of a link.
func NewLinkTarget(text string) LinkTarget {
	if utf8.ValidString(text) {
		return LinkTarget{Target: &text}
	}
	shown := strings.ToValidUTF8(text, "\ufffd")
	return LinkTarget{Target: &shown, TargetBase64: []byte(text)}
}

// Text returns the bytes of the text, "" if there is none.
func (t LinkTarget) Text() string {
	switch {
	case t.TargetBase64 != nil:
		return string(t.TargetBase64)
	case t.Target != nil:
		return *t.Target
	}
	return ""
}

// ReadLinkResult is the answer to fs/readLink.
type ReadLinkResult struct{ LinkTarget }

// FileTime is a modification time in params. The zero FileTime means none.
type FileTime struct {
	ModifiedAtMs *uint64 `json:"modifiedAtMs,omitempty"` // the modification time in Unix milliseconds
	ModifiedNs   *uint64 `json:"modifiedNs,omitempty"`   // the nanoseconds after ModifiedAtMs; nil means 0
}

// maxFileTime is the largest FileTime.ModifiedAtMs: the end of the year 9999.
const maxFileTime = 253402300799999

// NewFileTime converts a time. Times before 1970, which the protocol cannot represent, become
// the beginning of 1970.
func NewFileTime(t time.Time) FileTime {
	if t.Before(time.Unix(0, 0)) {
		t = time.Unix(0, 0)
	}
	ms, ns := uint64(t.UnixMilli()), uint64(t.Nanosecond()%1e6)
	return FileTime{&ms, &ns}
}

// Time returns the time, or nil if there is none.
func (t FileTime) Time() *time.Time {
	if t.ModifiedAtMs == nil {
		return nil
	}
	at := time.UnixMilli(int64(*t.ModifiedAtMs))
	if t.ModifiedNs != nil {
		at = at.Add(time.Duration(*t.ModifiedNs))
	}
	return &at
}

func (t FileTime) checkTime() error {
	switch {
	case t.ModifiedAtMs == nil && t.ModifiedNs != nil:
		return errors.New("modifiedNs requires modifiedAtMs")
	case t.ModifiedAtMs != nil && *t.ModifiedAtMs > maxFileTime:
		return fmt.Errorf("modifiedAtMs must not exceed %d", maxFileTime)
	case t.ModifiedNs != nil && *t.ModifiedNs >= 1e6:
		return errors.New("modifiedNs must be less than 1000000")
	}
	return nil
}

// SetMetadataParams are the params of fs/setMetadata. Nil members change nothing.
type SetMetadataParams struct {
	Path           Path            `json:"path"`
	Mode           *FileMode       `json:"mode,omitempty"` // the new mode; nil changes nothing
	Size           *uint64         `json:"size,omitempty"` // the new size in bytes; nil changes nothing
	FollowSymlinks bool            `json:"followSymlinks" wire:"optional=true"`
	Sandbox        json.RawMessage `json:"sandbox,omitempty" wire:"or=sandboxPolicy"`
	FileTime
}

// Files returns the paths that the request is about, and its sandbox.
func (p SetMetadataParams) Files() ([]Path, json.RawMessage) { return []Path{p.Path}, p.Sandbox }

func (p *SetMetadataParams) check() error {
	if p.Size != nil && *p.Size > math.MaxInt64 {
		return fmt.Errorf("size must not exceed %d", int64(math.MaxInt64))
	}
	return p.checkTime()
}

// SymlinkParams are the params of fs/symlink. The link at Path gets the text of
// LinkTarget.
type SymlinkParams struct {
	Path           Path            `json:"path"`
	FollowSymlinks bool            `json:"followSymlinks" wire:"optional=true"`
	Sandbox        json.RawMessage `json:"sandbox,omitempty" wire:"or=sandboxPolicy"`
	LinkTarget
}

// Files returns the paths that the request is about, and its sandbox.
func (p SymlinkParams) Files() ([]Path, json.RawMessage) { return []Path{p.Path}, p.Sandbox }

func (p *SymlinkParams) check() error {
	if p.Target == nil && p.TargetBase64 == nil {
		return missing("target")
	}
	return nil
}
