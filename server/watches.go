package server

import (
	"context"

	"execserver/internal/filesystem"
	"execserver/internal/rpc"
	"execserver/protocol"
)

// watchMissing serves fs/watchMissing. Ids must grow in order of arrival, so the reader
// claims them.
func (c *connection) watchMissing(r *rpc.Request, p protocol.WatchMissingParams) {
	if !c.missing.Claim(p.WatchID) {
		r.Reply(protocol.WatchMissingResult{Watching: false})
		return
	}
	missing, present := missingPaths(p)
	r.FilePool(func() {
		var begin func()
		c.operate(r, func() (_ any, err error) {
			var result protocol.WatchMissingResult
			begin, result.Watching = c.missing.Arm(r.Context(), p.WatchID, missing, present)
			return result, nil
		})
		if begin != nil {
			begin()
		}
	})
}

// missingPaths returns the paths of a watch, or none if one of them is foreign.
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
func (c *connection) missingChanged(id uint64) {
	// It fails only when the connection is gone, and the watch with it.
	_ = c.rpc.Notify(protocol.NotificationMissingChanged, protocol.MissingChangedParams{WatchID: id})
}

// subscription sends the events of one of the session's watches to this connection.
type subscription struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when no more events are sent
}

// watchLane returns the key of a watch's lane; see handleLane.
func watchLane(id string) string { return "\x00watch " + id }

// watch serves fs/watch.
func (c *connection) watch(r *rpc.Request, p protocol.WatchParams, paths []string) {
	c.watchIf(r, p, paths, func(string) error { return nil })
}

// watchIf serves fs/watch if may returns no error for the path.
func (c *connection) watchIf(r *rpc.Request, p protocol.WatchParams, paths []string, may func(path string) error) {
	r.Queue(watchLane(p.WatchID), rpc.Blocking, func(*rpc.Lane) {
		var feed *watchFeed
		c.operate(r, func() (any, error) {
			if c.subscribed(p.WatchID) {
				return nil, protocol.Errorf(protocol.CodeInvalidRequest, "watch `%s` already exists", p.WatchID)
			}
			if err := may(paths[0]); err != nil {
				return nil, err
			}
			watcher, fresh, err := c.session.Watch(r.Context(), p.WatchID, paths[0])
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
			c.subscribe(r, feed)
		}
	})
}

func (c *connection) subscribed(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.watching[id] != nil
}

// subscribe sends the events of a watch until it or the connection ends.
func (c *connection) subscribe(r *rpc.Request, feed *watchFeed) {
	ctx, cancel := context.WithCancel(r.Context())
	s := &subscription{cancel: cancel, done: make(chan struct{})}
	c.mu.Lock()
	if c.watching == nil {
		c.watching = make(map[string]*subscription)
	}
	c.watching[feed.id] = s
	c.mu.Unlock()
	r.Go(func() {
		defer close(s.done)
		defer cancel()
		feed.run(ctx, c.rpc)
	})
}

// unwatch serves fs/unwatch. No event of the watch follows its answer.
func (c *connection) unwatch(r *rpc.Request, p protocol.UnwatchParams) {
	r.Queue(watchLane(p.WatchID), rpc.Blocking, func(*rpc.Lane) {
		c.operate(r, func() (any, error) {
			c.mu.Lock()
			s := c.watching[p.WatchID]
			delete(c.watching, p.WatchID)
			c.mu.Unlock()
			if s != nil {
				s.cancel()
				select {
				case <-s.done:
				case <-r.Context().Done():
				}
			}
			c.session.Unwatch(p.WatchID)
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

// overflow returns an event after which the client must read everything.
func (f *watchFeed) overflow() filesystem.Event {
	root, _ := f.root.OSPath() // it was one when the watch began
	return filesystem.Event{Kind: filesystem.Overflow, Unwatched: []string{root}}
}

// send sends events as the peer accepts them, and returns false at the end.
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
