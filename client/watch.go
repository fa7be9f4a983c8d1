package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"path"
	"strings"
	"sync"

	"execserver/internal/rpc"
	"execserver/protocol"
)

// FileEventKind is the kind of a FileEvent.
type FileEventKind string

// The values of FileEventKind.
const (
	// WatchBegan is the first event: later changes are reported. A program that keeps a
	// copy of the directory reads it now.
	WatchBegan FileEventKind = "began"
	// FileCreated says that the name is new, or now refers to another file.
	FileCreated FileEventKind = "created"
	// FileModified says that content or attributes have changed.
	FileModified FileEventKind = "modified"
	// FileRemoved says that the name is gone, with everything below it.
	FileRemoved FileEventKind = "removed"
	// WatchOverflow says that changes at and below the names in Unwatched were missed, or
	// may be missed from now on. A program that needs the state must read it.
	WatchOverflow FileEventKind = "overflow"
)

// FileEvent is a change that FS.Watch reports. Names are those of the FS.
type FileEvent struct {
	Kind      FileEventKind
	Name      string   // "" for WatchBegan and WatchOverflow
	Unwatched []string // only for WatchOverflow
}

// Watch returns an iterator over changes in a directory and everything below it, without following
// links. The watch begins when the loop begins, with a WatchBegan. An error is the last value. The
// server needs the capability fsWatch (EXTENSIONS.md).
//
// If the connection breaks, the watch continues over the next one with the changes that happened
// meanwhile. If changes are missed, because they are too many, the loop is too slow, or the session
// has ended, Watch yields a WatchOverflow.
func (f *FS) Watch(name string) iter.Seq2[FileEvent, error] {
	return func(yield func(FileEvent, error) bool) {
		err := f.doWith(capWatch, "watch", name, func(osPath string) error {
			w := f.env.watches.add(f.env, osPath)
			defer w.end()
			return w.run(f.ctx, func(e protocol.ChangeEvent) bool {
				return yield(w.fileEvent(name, e), nil)
			})
		})
		if err != nil {
			yield(FileEvent{}, err)
		}
	}
}

// Bounds of the events of a watch that wait for its loop.
const (
	maxWatchEvents = 4096
	maxWatchBytes  = 1 << 20
)

// watches are the watches of an Environment, by id. The zero value is ready to use.
type watches struct {
	mu   sync.Mutex
	byID map[string]*watch
}

// watch is a directory that is being watched. Its cursor outlives connections.
type watch struct {
	env  *Environment
	id   string
	path string        // native
	wake chan struct{} // holds one element when there are events

	mu      sync.Mutex
	conn    *rpc.Conn // that brings the events; those of earlier ones come again
	cursor  uint64    // of the last event from conn, or from which conn continues
	came    bool      // an event came from conn
	waiting []protocol.ChangeEvent
	bytes   int // about what waiting takes
}

func (ws *watches) add(env *Environment, path string) *watch {
	w := &watch{env: env, id: randomID(), path: path, wake: make(chan struct{}, 1)}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.byID == nil {
		ws.byID = make(map[string]*watch)
	}
	ws.byID[w.id] = w
	return w
}

// changed passes events that a connection brought to their watch. It does not block.
func (ws *watches) changed(conn *rpc.Conn, params json.RawMessage) error {
	var changed protocol.ChangedParams
	if err := json.Unmarshal(params, &changed); err != nil {
		return fmt.Errorf("exec-server notification handling failed: %s: %w", protocol.NotificationChanged, err)
	}
	ws.mu.Lock()
	w := ws.byID[changed.WatchID]
	ws.mu.Unlock()
	if w != nil { // otherwise it has just ended
		w.take(conn, changed.Events)
	}
	return nil
}

func (w *watch) take(conn *rpc.Conn, events []protocol.ChangeEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if conn != w.conn || len(events) == 0 {
		return
	}
	w.came, w.cursor = true, events[len(events)-1].Cursor
	w.queueLocked(events...)
}

func (w *watch) queueLocked(events ...protocol.ChangeEvent) {
	for _, e := range events {
		w.bytes += eventSize(e)
	}
	if w.waiting = append(w.waiting, events...); len(w.waiting) > maxWatchEvents || w.bytes > maxWatchBytes {
		w.waiting = []protocol.ChangeEvent{w.overflow()}
		w.bytes = eventSize(w.waiting[0])
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// overflow is the event after which everything must be read.
func (w *watch) overflow() protocol.ChangeEvent {
	return protocol.ChangeEvent{Kind: protocol.ChangeOverflow, Unwatched: []protocol.Path{w.env.conns.machine.uri(w.path)}}
}

func (w *watch) next() (e protocol.ChangeEvent, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) == 0 {
		return e, false
	}
	e, w.waiting[0] = w.waiting[0], protocol.ChangeEvent{}
	w.waiting = w.waiting[1:]
	w.bytes -= eventSize(e)
	return e, true
}

// eventSize returns about how much memory an event takes.
func eventSize(e protocol.ChangeEvent) int {
	size := eventBytes
	if e.Path != nil {
		size += len(e.Path.String())
	}
	for _, p := range e.Unwatched {
		size += eventBytes + len(p.String())
	}
	return size
}

// run calls visit with each event until it returns false: then run returns nil. The first
// one has the kind WatchBegan.
func (w *watch) run(ctx context.Context, visit func(protocol.ChangeEvent) bool) error {
	session := ""
	for {
		conn, now, err := w.subscribe(ctx, session)
		if err != nil {
			return err
		}
		if session == "" && !visit(protocol.ChangeEvent{Kind: protocol.ChangeKind(WatchBegan)}) {
			return nil
		}
		session = now
		for broken := false; !broken; {
			if e, ok := w.next(); ok {
				if !visit(e) {
					return nil
				}
				continue
			}
			select {
			case <-w.wake:
			case <-conn.Context().Done():
				broken = true
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

// subscribe asks for the events over the current connection, and returns it and the session
// that has the watch. before is the session that had it; in another one the watch begins
// anew, after an overflow.
func (w *watch) subscribe(ctx context.Context, before string) (conn *rpc.Conn, session string, err error) {
	if err := w.env.conns.permit(protocol.MethodWatch); err != nil {
		return nil, "", err
	}
	for {
		if conn, _, err = w.env.conns.current(ctx); err != nil {
			return nil, "", err
		}
		session = w.env.conns.sessionID()
		params := protocol.WatchParams{WatchID: w.id, Path: w.env.conns.machine.uri(w.path)}
		w.mu.Lock()
		if before != "" && session != before {
			w.queueLocked(w.overflow())
		} else if before != "" {
			cursor := w.cursor
			params.Cursor = &cursor
		}
		w.conn, w.came = conn, false
		w.mu.Unlock()
		raw, err := conn.Call(ctx, protocol.MethodWatch, params)
		err = w.env.conns.outcome(ctx, conn, protocol.MethodWatch, err)
		if errors.As(err, new(*brokenError)) {
			continue
		}
		var result protocol.WatchResult
		if err == nil {
			err = understand(protocol.MethodWatch, raw, &result)
		}
		if err != nil {
			return nil, "", err
		}
		w.mu.Lock()
		if !w.came {
			w.cursor = result.Cursor
		}
		w.mu.Unlock()
		return conn, session, nil
	}
}

// end ends the watch, also on the server.
func (w *watch) end() {
	ws := &w.env.watches
	ws.mu.Lock()
	delete(ws.byID, w.id)
	ws.mu.Unlock()
	w.env.run(func() {
		ctx, cancel := context.WithTimeout(w.env.ctx, w.env.conns.undoTimeout())
		defer cancel()
		// If it fails, the watch ends with the session.
		_, _ = w.env.conns.repeat(ctx, protocol.MethodUnwatch, protocol.UnwatchParams{WatchID: w.id})
	})
}

// fileEvent converts an event of a watch of name.
func (w *watch) fileEvent(name string, e protocol.ChangeEvent) FileEvent {
	event := FileEvent{Kind: FileEventKind(e.Kind)}
	if e.Path != nil {
		event.Name = w.below(name, *e.Path)
	}
	for _, p := range e.Unwatched {
		event.Unwatched = append(event.Unwatched, w.below(name, p))
	}
	return event
}

// below returns the name of a path at or below the directory that is watched. Any other
// path becomes the directory itself: a program may join names to paths.
func (w *watch) below(name string, p protocol.Path) string {
	goos := w.env.conns.machine.goos()
	rest := strings.TrimPrefix(protocol.OSPathOn(goos, p.String()), w.path)
	if goos == "windows" {
		rest = strings.ReplaceAll(rest, `\`, "/")
	}
	rest = strings.TrimPrefix(rest, "/")
	for part := range strings.SplitSeq(rest, "/") {
		if !w.env.files.isName(part) {
			return name
		}
	}
	return path.Join(name, rest)
}
