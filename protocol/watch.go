package protocol

import (
	"encoding/json"
)

// Methods and notifications about changes of files (PROTOCOL.md, "Watching").
const (
	MethodWatchMissing = "fs/watchMissing"
	MethodWatch        = "fs/watch"
	MethodUnwatch      = "fs/unwatch"

	NotificationMissingChanged = "fs/missingChanged"
	NotificationChanged        = "fs/changed"
)

// WatchMissing are the params of fs/watchMissing.
type WatchMissing struct {
	WatchID uint64 `json:"watchId"` // greater than all before it
	Missing []Path `json:"missing"`
	Present *Path  `json:"present"`
}

// DecodeWatchMissing decodes the params of fs/watchMissing.
func DecodeWatchMissing(raw json.RawMessage) (p WatchMissing, err error) {
	err = decodeParams(raw, "FsWatchMissingParams", func(f *fields) {
		p.WatchID = f.unsigned("watchId")
		p.Missing = parse(f, f.required("missing"), decodePaths)
		if raw := f.optional("present"); raw != nil {
			path := parse(f, raw, decodePath)
			p.Present = &path
		}
	})
	return p, err
}

func decodePaths(raw json.RawMessage) ([]Path, error) {
	return decodeList(raw, decodePath)
}

// WatchMissingResult is the answer to fs/watchMissing.
type WatchMissingResult struct {
	Watching bool `json:"watching"`
}

// MissingChanged are the params of fs/missingChanged.
type MissingChanged struct {
	WatchID uint64 `json:"watchId"`
}

// Watch are the params of fs/watch, an extension. A nil Cursor asks for what
// happens from now on.
type Watch struct {
	WatchID string          `json:"watchId"` // chosen by the client
	Path    Path            `json:"path"`
	Cursor  *uint64         `json:"cursor,omitempty"` // of the last event that the client has
	Sandbox json.RawMessage `json:"sandbox,omitempty"`
}

// DecodeWatch decodes the params of fs/watch.
func DecodeWatch(raw json.RawMessage) (p Watch, err error) {
	err = decodeParams(raw, "FsWatchParams", func(f *fields) {
		p.WatchID = f.identifier("watchId")
		p.Path = f.path("path")
		p.Cursor = f.optionalUnsigned("cursor")
		p.Sandbox = f.sandbox()
	})
	return p, err
}

// WatchResult is the answer to fs/watch.
type WatchResult struct {
	Cursor uint64 `json:"cursor"` // events above it will follow
}

// Unwatch are the params of fs/unwatch.
type Unwatch struct {
	WatchID string `json:"watchId"`
}

// DecodeUnwatch decodes the params of fs/unwatch.
func DecodeUnwatch(raw json.RawMessage) (p Unwatch, err error) {
	err = decodeParams(raw, "FsUnwatchParams", func(f *fields) {
		p.WatchID = f.identifier("watchId")
	})
	return p, err
}

// Changed are the params of fs/changed.
type Changed struct {
	WatchID string        `json:"watchId"`
	Events  []ChangeEvent `json:"events"`
}

// ChangeEvent is one change below a watched directory. Cursors count from 1
// without gaps.
type ChangeEvent struct {
	Cursor    uint64     `json:"cursor"`
	Kind      ChangeKind `json:"kind"`
	Path      *Path      `json:"path,omitempty"`      // absent for an overflow
	Unwatched []Path     `json:"unwatched,omitempty"` // only for an overflow
}

// ChangeKind says what happened.
type ChangeKind string

// The values of ChangeKind.
const (
	ChangeCreated  ChangeKind = "created"
	ChangeModified ChangeKind = "modified"
	ChangeRemoved  ChangeKind = "removed"
	ChangeOverflow ChangeKind = "overflow" // something went unseen, or may from now on
)
