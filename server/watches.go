package server

import (
	"context"

	"execserver/filesystem"
	"execserver/protocol"
	"execserver/rpc"
)

// watchMissing serves fs/watchMissing. Ids must grow in the order of arrival, so
// they are claimed by the reader.
func (c *connection) watchMissing(r *rpc.Request, p protocol.WatchMissing) {
	if !c.missing.Claim(p.WatchID) {
		r.Reply(protocol.WatchMissingResult{Watching: false})
		return
	}
	missing, present := missingPaths(p)
	r.Pool(func() {
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

// missingPaths returns the paths of a watch, none when one of them is foreign.
func missingPaths(p protocol.WatchMissing) (missing []string, present string) {
	var err error
	if p.Present != nil {
		if present, err = p.Present.Native(); err != nil {
			return nil, ""
		}
	}
	for _, path := range p.Missing {
		path, err := path.Native()
		if err != nil {
			return nil, ""
		}
		missing = append(missing, path)
	}
	return missing, present
}

// missingChanged tells the client that a watch has fired.
func (c *connection) missingChanged(id uint64) {
	// It fails when the connection is gone, and the watch with it.
	_ = c.rpc.Notify(protocol.NotificationMissingChanged, protocol.MissingChanged{WatchID: id})
}

// subscription is a watch of the session whose events go to this connection.
type subscription struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when no event goes out any more
}

// watchLane is the key of the lane of a watch; see handleLane.
func watchLane(id string) string { return "\x00watch " + id }

// watch serves fs/watch.
func (c *connection) watch(r *rpc.Request, p protocol.Watch) {
	paths, ok := c.native(r, p.Sandbox, p.Path)
	if !ok {
		return
	}
	r.Queue(watchLane(p.WatchID), false, false, func(*rpc.Lane) {
		var feed *watchFeed
		c.operate(r, func() (any, error) {
			if c.subscribed(p.WatchID) {
				return nil, protocol.Errorf(protocol.CodeInvalidRequest, "watch `%s` already exists", p.WatchID)
			}
			watcher, fresh, err := c.session.Watch(r.Context(), p.WatchID, paths[0])
			if err != nil {
				return nil, err
			}
			feed = &watchFeed{id: p.WatchID, root: p.Path, watcher: watcher}
			switch {
			case p.Cursor == nil:
				feed.after = watcher.Cursor()
			case fresh: // what the cursor is about, nobody knows any more
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

// unwatch serves fs/unwatch. No event of the watch comes after its answer.
func (c *connection) unwatch(r *rpc.Request, p protocol.Unwatch) {
	r.Queue(watchLane(p.WatchID), false, false, func(*rpc.Lane) {
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

// watchFeed makes notifications of the events of a watch.
type watchFeed struct {
	id      string
	root    protocol.Path
	watcher *filesystem.Watcher
	after   uint64 // cursor of the last event that was sent
	lost    bool   // events before the watcher's first are lost
}

// changedBytes is about how large a notification of changes becomes before
// another one is begun.
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

// overflow is the event that says that everything has to be looked at.
func (f *watchFeed) overflow() filesystem.Event {
	root, _ := f.root.Native() // it was one when the watch began
	return filesystem.Event{Kind: filesystem.Overflow, Unwatched: []string{root}}
}

// send sends events when the peer takes them, and reports false at the end.
func (f *watchFeed) send(ctx context.Context, conn *rpc.Conn, events []filesystem.Event) bool {
	for len(events) > 0 && ctx.Err() == nil {
		changed := protocol.Changed{WatchID: f.id}
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

// event returns an event as it stands on the wire, and about how long it is.
func (f *watchFeed) event(e filesystem.Event) (_ protocol.ChangeEvent, size int) {
	event := protocol.ChangeEvent{Cursor: e.Cursor, Kind: protocol.ChangeKind(e.Kind.String())}
	size = 96
	if e.Kind != filesystem.Overflow {
		path := f.root.WithNative(e.Path)
		event.Path = &path
		size += len(path.String())
	}
	for _, unwatched := range e.Unwatched {
		path := f.root.WithNative(unwatched)
		event.Unwatched = append(event.Unwatched, path)
		size += len(path.String()) + 4
	}
	return event, size
}
