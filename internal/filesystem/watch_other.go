//go:build !linux

package filesystem

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// watchSource feeds a journal from fsnotify.
type watchSource struct {
	options WatchOptions
	journal *journal
	root    string
	files   *fsnotify.Watcher
	end     fs.FileInfo // the root's directory; nil if there is none
	stop    sync.Once
	done    chan struct{}
}

func newWatchSource(ctx context.Context, root string, options WatchOptions, j *journal) (*watchSource, error) {
	info, err := os.Stat(root)
	if err != nil {
		return nil, pathError("watch", root, err)
	} else if !info.IsDir() {
		return nil, pathError("watch", root, syscall.ENOTDIR)
	}
	files, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, pathError("watch", root, err)
	}
	s := &watchSource{options: options, journal: j, root: root, files: files, end: info, done: make(chan struct{})}
	s.add(ctx, root, false)
	if ctx.Err() != nil {
		files.Close()
		return nil, context.Cause(ctx)
	}
	go s.run()
	return s, nil
}

func (s *watchSource) add(ctx context.Context, root string, report bool) {
	filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return fs.SkipAll
		}
		if err != nil {
			s.journal.overflow(path)
			return nil
		}
		if report && path != root {
			s.journal.record(path, Created)
		}
		if !d.IsDir() {
			return nil
		}
		if len(s.files.WatchList()) >= s.options.MaxDirectories || s.files.Add(path) != nil {
			s.journal.overflow(path)
			return fs.SkipDir
		}
		return nil
	})
}

func (s *watchSource) run() {
	defer close(s.done)
	ticker := time.NewTicker(recheckInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.recheck()
		case e, ok := <-s.files.Events:
			if !ok {
				return
			}
			s.event(e)
		case _, ok := <-s.files.Errors:
			if !ok {
				return
			}
			s.journal.overflow(s.root)
		}
	}
}

// recheckInterval is how often a watch checks where its path leads.
const recheckInterval = time.Second

// recheck begins anew when the path of the root leads to another directory.
func (s *watchSource) recheck() {
	now, err := os.Stat(s.root)
	if err != nil {
		now = nil
	}
	if now == nil && s.end == nil || now != nil && s.end != nil && os.SameFile(now, s.end) {
		return
	}
	s.end = now
	for _, path := range s.files.WatchList() {
		_ = s.files.Remove(path) // which may have gone with its directory
	}
	if now != nil {
		s.add(context.Background(), s.root, false)
	}
	s.journal.overflow(s.root)
}

func (s *watchSource) event(e fsnotify.Event) {
	switch {
	case e.Has(fsnotify.Create):
		s.journal.record(e.Name, Created)
		if info, err := os.Lstat(e.Name); err == nil && info.IsDir() {
			s.add(context.Background(), e.Name, true)
		}
	case e.Has(fsnotify.Remove), e.Has(fsnotify.Rename):
		s.journal.record(e.Name, Removed)
	default:
		s.journal.record(e.Name, Modified)
	}
}

func (s *watchSource) close() {
	s.stop.Do(func() { s.files.Close() })
	<-s.done
}

// MaxWatchers returns how many watchers the clients of a server may have together. This
// system does not report its own limit.
func MaxWatchers() int { return 1024 }

// CanWatchMissing reports whether a MissingWatch can watch anything on this system.
const CanWatchMissing = false

// missingSlot never exists on this system, which can watch neither the mount table nor
// single names in a directory. Arm refuses every watch.
type missingSlot struct{}

func newMissingSlot(_ context.Context, _ []string, _ string, _, leave func()) *missingSlot {
	leave()
	return nil
}

func (s *missingSlot) begin() {}
func (s *missingSlot) stop()  {}
