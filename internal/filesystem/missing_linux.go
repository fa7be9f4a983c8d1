package filesystem

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// WatchesMissing reports whether a MissingWatch can watch anything on this system.
const WatchesMissing = true

// missingSlot is one watch in progress. Its goroutine ends after the first event, or when
// stop is called.
type missingSlot struct {
	begun   chan struct{}
	start   sync.Once
	stopped chan struct{}
	halt    sync.Once
	done    chan struct{} // closed when the goroutine has ended

	files  *fsnotify.Watcher
	mounts *mountWatch
	names  map[string]bool // an event with one of these names matters
}

// newMissingSlot returns nil if the paths cannot be watched reliably.
func newMissingSlot(ctx context.Context, missing []string, present string, notify func()) *missingSlot {
	plan, ok := planWatch(missing, present)
	if !ok || ctx.Err() != nil {
		return nil
	}
	s := &missingSlot{
		begun:   make(chan struct{}),
		stopped: make(chan struct{}),
		done:    make(chan struct{}),
		names:   map[string]bool{},
	}
	if !s.arm(plan) {
		s.release()
		return nil
	}
	go s.run(notify)
	return s
}

// arm starts watching and then checks the state, in this order, so that it misses no
// change in between.
func (s *missingSlot) arm(plan watchPlan) bool {
	var err error
	if s.mounts, err = newMountWatch(); err != nil {
		return false
	}
	if s.files, err = fsnotify.NewWatcher(); err != nil {
		return false
	}
	for dir := range plan.directories {
		err := s.files.Add(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if info, statErr := os.Lstat(dir); err != nil || statErr != nil || !info.IsDir() {
			return false
		}
		s.names[dir] = true
	}
	if plan.present != "" {
		s.names[plan.present] = true
		if s.files.Add(plan.present) != nil || !isPlain(plan.present) {
			return false
		}
	}
	for _, path := range plan.missing {
		first, ok := firstMissing(path, s.names)
		if !ok {
			return false
		}
		s.names[first] = true
	}
	return true
}

// firstMissing returns the first component of path that does not exist in a watched
// directory.
func firstMissing(path string, watched map[string]bool) (string, bool) {
	for {
		parent := filepath.Dir(path)
		info, err := os.Lstat(parent)
		switch {
		case os.IsNotExist(err) && parent != path:
			path = parent
		case err != nil || !info.IsDir() || !watched[parent]:
			return "", false
		default:
			_, err := os.Lstat(path)
			return path, os.IsNotExist(err)
		}
	}
}

// isPlain reports whether path exists and no component of it is a link.
func isPlain(path string) bool {
	_, err := getMetadata(path, NoFollow, false)
	return err == nil
}

func (s *missingSlot) run(notify func()) {
	defer close(s.done)
	changed := s.wait()
	s.release()
	if !changed {
		return
	}
	select {
	case <-s.begun:
		notify()
	case <-s.stopped:
	}
}

// wait waits for an event or the end of the watch, and reports whether it was an event.
func (s *missingSlot) wait() bool {
	for {
		select {
		case <-s.stopped:
			return false
		case <-s.mounts.changed:
			return true
		case <-s.files.Errors: // events were lost, so anything may have happened
			return true
		case e := <-s.files.Events:
			if s.names[filepath.Clean(e.Name)] {
				return true
			}
		}
	}
}

func (s *missingSlot) begin() { s.start.Do(func() { close(s.begun) }) }

// stop ends the watch and waits for its goroutine.
func (s *missingSlot) stop() {
	if s == nil {
		return
	}
	s.halt.Do(func() { close(s.stopped) })
	<-s.done
}

func (s *missingSlot) release() {
	if s.files != nil {
		s.files.Close()
	}
	if s.mounts != nil {
		s.mounts.close()
	}
}
