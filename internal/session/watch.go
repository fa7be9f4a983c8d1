package session

import (
	"context"
	"os"

	"execserver/internal/filesystem"
	"execserver/internal/quota"
	"execserver/protocol"
)

// maxWatches bounds the trees that one session watches.
const maxWatches = 32

// watch is a tree that a session watches. It outlives connections, so a client that comes
// back can continue from its last event.
type watch struct {
	path    string
	ready   chan struct{} // closed when the watcher exists, or never will
	watcher *filesystem.Watcher
}

// Watch returns the watcher of a tree under a client's id. If there is none yet, it
// starts one and fresh is true. ctx bounds the start, not the watcher. permit is that of
// filesystem.WatchOptions.
func (s *Session) Watch(ctx context.Context, id, path string, permit func(*os.File) error) (w *filesystem.Watcher, fresh bool, err error) {
	for {
		mine, found, err := s.reserveWatch(id, path)
		if err != nil {
			return nil, false, err
		}
		if found == nil {
			w, err := s.startWatch(ctx, id, mine, permit)
			return w, true, err
		}
		select {
		case <-found.ready:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
		if found.watcher != nil {
			return found.watcher, false, nil
		}
	}
}

// reserveWatch returns the watch of an id, or a new one.
func (s *Session) reserveWatch(id, path string) (mine, found *watch, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found = s.watches[id]
	switch {
	case s.ended:
		return nil, nil, protocol.Errorf(protocol.CodeInvalidRequest, "session %s has ended", s.ID)
	case found != nil && found.path != path:
		return nil, nil, protocol.Errorf(protocol.CodeInvalidRequest, "watch `%s` is about another path: %s", id, found.path)
	case found != nil:
		return nil, found, nil
	case len(s.watches) >= maxWatches:
		return nil, nil, protocol.Errorf(protocol.CodeInvalidRequest, "at most %d watches may be open per session", maxWatches)
	}
	if err := s.acquireWatch(id); err != nil {
		return nil, nil, err
	}
	mine = &watch{path: path, ready: make(chan struct{})}
	if s.watches == nil {
		s.watches = make(map[string]*watch)
	}
	s.watches[id] = mine
	return mine, nil, nil
}

func (s *Session) startWatch(ctx context.Context, id string, mine *watch, permit func(*os.File) error) (*filesystem.Watcher, error) {
	defer close(mine.ready)
	w, err := filesystem.NewWatcher(ctx, mine.path, filesystem.WatchOptions{Permit: permit})
	s.mu.Lock()
	wanted := s.watches[id] == mine && !s.ended
	switch {
	case wanted && err == nil:
		mine.watcher = w
	case wanted:
		delete(s.watches, id)
		s.releaseWatch()
	}
	s.mu.Unlock()
	if err == nil && !wanted {
		w.Close()
		return nil, protocol.Errorf(protocol.CodeInvalidRequest, "watch `%s` was ended", id)
	}
	return w, err
}

// Unwatch ends a watch. It does nothing if there is none.
func (s *Session) Unwatch(id string) {
	s.mu.Lock()
	found := s.watches[id]
	if found != nil {
		delete(s.watches, id)
		s.releaseWatch()
	}
	var w *filesystem.Watcher
	if found != nil {
		w = found.watcher // nil while it is being started: then startWatch ends it
	}
	s.mu.Unlock()
	if w != nil {
		w.Close()
	}
}

// unwatchAll ends the watches of a session that has ended.
func (s *Session) unwatchAll() {
	s.mu.Lock()
	ids := make([]string, 0, len(s.watches))
	for id := range s.watches {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	for _, id := range ids {
		s.Unwatch(id)
	}
}

// AdmitWatch counts a watch that is not the session's own among those of its principal, until
// the caller calls release.
func (s *Session) AdmitWatch(id string) (release func(), err error) {
	return s.releaseWatch, s.acquireWatch(id)
}

// acquireWatch counts one more watch of the principal.
func (s *Session) acquireWatch(id string) error {
	if s.quotaKey == quota.None {
		return nil
	}
	if refusal := s.quotas.watches.Take(s.quotaKey); refusal != nil {
		return protocol.Errorf(protocol.CodeInvalidRequest, "watch `%s` refused: %s", id, refusal.Of("has", "watches"))
	}
	return nil
}

func (s *Session) releaseWatch() {
	if s.quotaKey != quota.None {
		s.quotas.watches.Release(s.quotaKey)
	}
}
