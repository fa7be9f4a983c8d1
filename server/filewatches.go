package server

import (
	"context"
	"io/fs"
	"os"
	"strconv"
	"sync"

	"execserver/internal/filesystem"
	"execserver/internal/rpc"
	"execserver/protocol"
)

// watchHandler serves the methods that watch files.
type watchHandler struct {
	*fileOperations
	rpc     *rpc.Conn
	missing *filesystem.MissingWatch

	mu       sync.Mutex
	watching map[string]*subscription // watches whose events this connection receives
}

func newWatchHandler(operations *fileOperations, conn *rpc.Conn) *watchHandler {
	h := &watchHandler{fileOperations: operations, rpc: conn, watching: make(map[string]*subscription)}
	h.missing = filesystem.NewMissingWatch(h.missingChanged)
	h.missing.Admit = func(id uint64) (func(), error) { return h.session.AdmitWatch(strconv.FormatUint(id, 10)) }
	return h
}

// watchMissing serves fs/watchMissing. The ids of watches must grow in order of arrival, so
// the reader claims them.
func (h *watchHandler) watchMissing(r *rpc.Request, p protocol.WatchMissingParams) {
	if !h.missing.Claim(p.WatchID) {
		r.Reply(protocol.WatchMissingResult{Watching: false})
		return
	}
	missing, present := missingPaths(p)
	r.FilePool(func() {
		var begin func()
		h.operate(r, func() (_ any, err error) {
			var result protocol.WatchMissingResult
			if err := h.permitMissing(append(missing, present)); err != nil {
				return nil, err
			}
			begin, result.Watching, err = h.missing.Arm(r.Context(), p.WatchID, missing, present)
			return result, err
		})
		if begin != nil {
			begin()
		}
	})
}

// permitMissing refuses paths that the sandbox of the credentials hides, or that lead over what it
// hides, whether they exist or not.
func (h *watchHandler) permitMissing(paths []string) error {
	if confinement(protocol.MethodWatchMissing, h.principal.Grant.FileSandbox()) == nil {
		return nil
	}
	for _, path := range paths {
		var refused error
		f, err := filesystem.OpenPermitted(path, func(f *os.File) error {
			refused = h.permitVisible(f)
			return refused
		})
		if err == nil {
			_ = f.Close()
		}
		if refused != nil {
			return &fs.PathError{Op: "watch", Path: path, Err: refused}
		}
	}
	return nil
}

// missingPaths returns the paths of a watch, or none if one of them is not a path of this
// system.
func missingPaths(p protocol.WatchMissingParams) (missing []string, present string) {
	var err error
	if p.Present != nil {
		if present, err = p.Present.OSPath(); err != nil {
			return nil, ""
		}
	}
	for _, path := range p.Missing {
		path, err := path.OSPath()
		if err != nil {
			return nil, ""
		}
		missing = append(missing, path)
	}
	return missing, present
}

// missingChanged notifies the client that a watch has fired.
func (h *watchHandler) missingChanged(id uint64) {
	// It fails only when the connection has ended, and the watch with it.
	_ = h.rpc.Notify(protocol.NotificationMissingChanged, protocol.MissingChangedParams{WatchID: id})
}

// subscription sends the events of one of the session's watches to this connection.
type subscription struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when no more events are sent
}

// watchLane returns the key of a watch's lane; see handleLane.
func watchLane(id string) string { return "\x00watch " + id }

// watch serves fs/watch.
func (h *watchHandler) watch(r *rpc.Request, p protocol.WatchParams, paths []string) {
	h.watchPermitted(r, p, paths, nil)
}

// watchPermitted serves fs/watch if permit, as in filesystem.WatchOptions, returns no error.
func (h *watchHandler) watchPermitted(r *rpc.Request, p protocol.WatchParams, paths []string, permit func(*os.File) error) {
	r.Queue(watchLane(p.WatchID), rpc.Blocking, func(*rpc.Lane) {
		var feed *watchFeed
		h.operate(r, func() (any, error) {
			if h.subscribed(p.WatchID) {
				return nil, protocol.Errorf(protocol.CodeInvalidRequest, "watch `%s` already exists", p.WatchID)
			}
			watcher, fresh, err := h.session.Watch(r.Context(), p.WatchID, paths[0], permit)
			if err != nil {
				return nil, err
			}
			feed = &watchFeed{id: p.WatchID, root: p.Path, watcher: watcher}
			switch {
			case p.Cursor == nil:
				feed.after = watcher.Cursor()
			case fresh: // the cursor belongs to an earlier watcher
				feed.lost = *p.Cursor > 0
			default:
				feed.after = *p.Cursor
			}
			return protocol.WatchResult{Cursor: feed.after}, nil
		})
		if feed != nil {
			h.subscribe(r, feed)
		}
	})
}

func (h *watchHandler) subscribed(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.watching[id] != nil
}

// subscribe sends the events of a watch until it or the connection ends.
func (h *watchHandler) subscribe(r *rpc.Request, feed *watchFeed) {
	ctx, cancel := context.WithCancel(r.Context())
	s := &subscription{cancel: cancel, done: make(chan struct{})}
	h.mu.Lock()
	h.watching[feed.id] = s
	h.mu.Unlock()
	r.Go(func() {
		defer close(s.done)
		defer cancel()
		feed.run(ctx, h.rpc)
	})
}

// unwatch serves fs/unwatch. No event of the watch follows its answer.
func (h *watchHandler) unwatch(r *rpc.Request, p protocol.UnwatchParams) {
	r.Queue(watchLane(p.WatchID), rpc.Blocking, func(*rpc.Lane) {
		h.operate(r, func() (any, error) {
			h.mu.Lock()
			s := h.watching[p.WatchID]
			delete(h.watching, p.WatchID)
			h.mu.Unlock()
			if s != nil {
				s.cancel()
				select {
				case <-s.done:
				case <-r.Context().Done():
				}
			}
			h.session.Unwatch(p.WatchID)
			return protocol.Empty{}, nil
		})
	})
}

// watchFeed converts the events of a watch to notifications.
type watchFeed struct {
	id      string
	root    protocol.Path
	watcher *filesystem.Watcher
	after   uint64 // cursor of the last event sent
	lost    bool   // events before the watcher's first are lost
}

// changedBytes is the approximate size at which a notification of changes is complete and
// another one begins.
const changedBytes = 64 << 10

func (f *watchFeed) run(ctx context.Context, conn *rpc.Conn) {
	if f.lost && !f.send(ctx, conn, []filesystem.Event{f.overflow()}) {
		return
	}
	for {
		events, err := f.watcher.Events(ctx, f.after)
		if err != nil || !f.send(ctx, conn, events) {
			return
		}
		f.after = events[len(events)-1].Cursor
	}
}

// overflow returns an event after which the client must read the whole tree again.
func (f *watchFeed) overflow() filesystem.Event {
	root, _ := f.root.OSPath() // it was one when the watch began
	return filesystem.Event{Kind: filesystem.Overflow, Unwatched: []string{root}}
}

// send sends events as fast as the peer accepts them. It returns false when the watch or the
// connection has ended.
func (f *watchFeed) send(ctx context.Context, conn *rpc.Conn, events []filesystem.Event) bool {
	for len(events) > 0 && ctx.Err() == nil {
		changed := protocol.ChangedParams{WatchID: f.id}
		size := len(f.id) + 128
		for len(events) > 0 && size < changedBytes {
			event, n := f.event(events[0])
			changed.Events = append(changed.Events, event)
			size += n
			events = events[1:]
		}
		if conn.Publish(protocol.NotificationChanged, changed, size) != nil {
			return false
		}
	}
	return ctx.Err() == nil
}

// event returns an event for the wire, and its approximate size.
func (f *watchFeed) event(e filesystem.Event) (_ protocol.ChangeEvent, size int) {
	event := protocol.ChangeEvent{Cursor: e.Cursor, Kind: protocol.ChangeKind(e.Kind.String())}
	size = 96
	if e.Kind != filesystem.Overflow {
		path := f.root.WithOSPath(e.Path)
		event.Path = &path
		size += len(path.String())
	}
	for _, unwatched := range e.Unwatched {
		path := f.root.WithOSPath(unwatched)
		event.Unwatched = append(event.Unwatched, path)
		size += len(path.String()) + 4
	}
	return event, size
}
