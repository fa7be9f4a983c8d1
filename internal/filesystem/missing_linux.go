package filesystem

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// CanWatchMissing reports whether a MissingWatch can watch anything on this system.
const CanWatchMissing = true

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
	leave  func()
}

// newMissingSlot returns nil if the paths cannot be watched reliably. It calls leave when the
// slot holds nothing of the system any more, or never will.
func newMissingSlot(ctx context.Context, missing []string, present string, notify, leave func()) *missingSlot {
	plan, ok := planWatch(missing, present)
	if !ok || ctx.Err() != nil {
		leave()
		return nil
	}
	s := &missingSlot{
		begun:   make(chan struct{}),
		stopped: make(chan struct{}),
		done:    make(chan struct{}),
		names:   map[string]bool{},
		leave:   leave,
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
	s.leave()
}

// mountWatch reports that a file system was mounted or unmounted.
//
// After a change the kernel puts the mount table into an exceptional state, once for each
// time it was opened; the first poll consumes it. The runtime's poller polls every
// descriptor that it is given, but for other states. So mountWatch opens the table twice.
// The poller gets an epoll descriptor that wraps one of them and wakes up; polling the
// other one tells whether the table has changed. This way no thread blocks, and no change
// is missed.
type mountWatch struct {
	changed chan struct{} // closed after the first change, or when in doubt
	table   int           // polled after a wake-up
	wakeup  int           // wrapped by poll
	poll    *os.File      // the epoll descriptor, for the runtime's poller
	done    chan struct{}
}

func newMountWatch() (m *mountWatch, err error) {
	m = &mountWatch{table: -1, wakeup: -1, changed: make(chan struct{}), done: make(chan struct{})}
	defer func() {
		if err != nil {
			m.release()
		}
	}()
	const name = "/proc/self/mountinfo"
	if m.table, err = sys.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return nil, err
	}
	if m.wakeup, err = sys.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return nil, err
	}
	epoll, err := sys.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	err = sys.EpollCtl(epoll, unix.EPOLL_CTL_ADD, m.wakeup, &unix.EpollEvent{Events: unix.EPOLLPRI, Fd: int32(m.wakeup)})
	if err == nil {
		err = sys.SetNonblock(epoll, true)
	}
	if err != nil {
		sys.Close(epoll)
		return nil, err
	}
	m.poll = sys.NewFile(uintptr(epoll), "mount table")
	go m.run()
	return m, nil
}

func (m *mountWatch) run() {
	defer close(m.done)
	defer close(m.changed)
	conn, err := m.poll.SyscallConn()
	if err != nil {
		return
	}
	conn.Read(func(uintptr) bool { // returns after a wake-up and after Close
		fds := []unix.PollFd{{Fd: int32(m.table), Events: unix.POLLPRI}}
		n, err := retry(func() (int, error) { return sys.Poll(fds, 0) })
		return n > 0 || err != nil
	})
}

func (m *mountWatch) close() {
	m.poll.Close()
	<-m.done
	m.release()
}

func (m *mountWatch) release() {
	for _, fd := range []int{m.table, m.wakeup} {
		if fd >= 0 {
			sys.Close(fd)
		}
	}
}
