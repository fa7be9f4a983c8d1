package protocol

import "encoding/json"

// Methods and notifications about changes of files (PROTOCOL.md, "Watching").
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
	Missing []Path `json:"missing"`
	Present *Path  `json:"present"`
}

// WatchMissingResult is the answer to fs/watchMissing.
type WatchMissingResult struct {
	Watching bool `json:"watching"`
}

// MissingChangedParams are the params of fs/missingChanged.
type MissingChangedParams struct {
	WatchID uint64 `json:"watchId"`
}

// WatchParams are the params of fs/watch, an extension. With a nil Cursor the watch
// reports events from now on.
type WatchParams struct {
	WatchID string          `json:"watchId" wire:"identifier"` // chosen by the client
	Path    Path            `json:"path"`
	Cursor  *uint64         `json:"cursor,omitempty"` // of the last event that the client has
	Sandbox json.RawMessage `json:"sandbox,omitempty" wire:"or=sandboxPolicy"`
}

// Files returns the paths that the request is about, and its sandbox.
func (p WatchParams) Files() ([]Path, json.RawMessage) { return []Path{p.Path}, p.Sandbox }

// WatchResult is the answer to fs/watch.
type WatchResult struct {
	Cursor uint64 `json:"cursor"` // events after it will follow
}

// UnwatchParams are the params of fs/unwatch.
type UnwatchParams struct {
	WatchID string `json:"watchId" wire:"identifier"`
}

// ChangedParams are the params of fs/changed.
type ChangedParams struct {
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

// ChangeKind is the kind of a change.
type ChangeKind string

// The values of ChangeKind.
const (
	ChangeCreated  ChangeKind = "created"
	ChangeModified ChangeKind = "modified"
	ChangeRemoved  ChangeKind = "removed"
	ChangeOverflow ChangeKind = "overflow" // changes were missed, or may be from now on
)
