package cgroup

import (
	"encoding/binary"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// Watcher removes groups when they become empty. It needs one descriptor for all of them,
// and uses no processor time while nothing changes. All methods may be called concurrently.
type Watcher struct {
	events   *os.File // inotify
	done     chan struct{}
	byNumber map[int32]*watched // by the kernel's watch number; used by run alone

	mu      sync.Mutex
	watches map[*Group]*watched
	due     map[*watched]time.Time // when to try to remove a group
}

// watched is a group that has not been removed yet.
type watched struct {
	group   *Group
	removed func()

	// Used by run alone.
	number int32         // the watch descriptor; 0: none
	pause  time.Duration // until the next attempt to remove the group
}

// If the kernel reports nothing about a group, the pauses between attempts to remove it
// double from minPause to maxPause.
const (
	minPause = 10 * time.Millisecond
	maxPause = time.Minute
)

// NewWatcher starts a watcher.
func NewWatcher() (*Watcher, error) {
	fd, err := sys.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	w := &Watcher{
		events: sys.NewFile(uintptr(fd), "inotify"), done: make(chan struct{}), byNumber: make(map[int32]*watched),
		watches: make(map[*Group]*watched), due: make(map[*watched]time.Time),
	}
	go w.run() // until Close
	return w, nil
}

// RemoveEmpty removes the group as soon as no process runs in it, and then calls removed
// on the watcher's goroutine. It does not call removed after Close. For a group that the
// watcher already has, it only checks it at once.
func (w *Watcher) RemoveEmpty(g *Group, removed func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.watches[g]
	if x == nil {
		x = &watched{group: g, removed: removed}
		w.watches[g] = x
	}
	w.due[x] = time.Now()
	_ = w.events.SetReadDeadline(time.Now()) // wakes run up; fails only after Close
}

// Close forgets all groups and waits until the watcher's goroutine has ended. The
// functions given to RemoveEmpty must not call it.
func (w *Watcher) Close() {
	_ = w.events.Close()
	<-w.done
}

func (w *Watcher) run() {
	defer close(w.done)
	buffer := make([]byte, 64*unix.SizeofInotifyEvent) // an event of a file has no name
	for {
		n, err := w.events.Read(buffer)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return // closed
		}
		for rest := buffer[:max(n, 0)]; len(rest) >= unix.SizeofInotifyEvent; rest = rest[unix.SizeofInotifyEvent:] {
			number, mask := binary.NativeEndian.Uint32(rest), binary.NativeEndian.Uint32(rest[unsafe.Offsetof(unix.InotifyEvent{}.Mask):])
			w.handleEvent(int32(number), mask)
		}
		for _, x := range w.popDue() {
			w.attempt(x)
		}
		w.setAlarm()
	}
}

// handleEvent finds the group of an event. When events were lost it notes all groups.
func (w *Watcher) handleEvent(number int32, mask uint32) {
	about := []*watched{w.byNumber[number]}
	if mask&unix.IN_Q_OVERFLOW != 0 {
		about = slices.Collect(maps.Values(w.byNumber))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range about {
		if x == nil {
			continue
		}
		if mask&unix.IN_IGNORED != 0 { // the kernel has dropped the watch
			delete(w.byNumber, number)
			x.number = 0
		}
		x.pause = 0
		w.due[x] = time.Now()
	}
}

// popDue returns the groups that are due for an attempt.
func (w *Watcher) popDue() (now []*watched) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for x, at := range w.due {
		if !at.After(time.Now()) {
			now = append(now, x)
			delete(w.due, x)
		}
	}
	return now
}

// attempt removes a group if it is empty. Otherwise it is retried when the kernel reports
// that the group is empty, or after a while.
func (w *Watcher) attempt(x *watched) {
	w.watch(x) // before checking, so that it misses no change
	if x.group.Remove() == nil {
		w.forget(x)
		x.removed()
		return
	}
	if populated, err := x.group.Populated(); err == nil && populated && x.number != 0 {
		return
	}
	x.pause = min(max(2*x.pause, minPause), maxPause)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.due[x] = time.Now().Add(x.pause)
}

// watch asks the kernel to report when a group becomes empty.
func (w *Watcher) watch(x *watched) {
	if x.number != 0 {
		return
	}
	number := 0
	err := w.control(func(fd int) (err error) {
		number, err = sys.InotifyAddWatch(fd, filepath.Join(x.group.path, "cgroup.events"), unix.IN_MODIFY)
		return err
	})
	if err == nil { // otherwise the pauses apply
		x.number = int32(number)
		w.byNumber[x.number] = x
	}
}

// forget drops a group that has been removed.
func (w *Watcher) forget(x *watched) {
	w.mu.Lock()
	delete(w.watches, x.group)
	delete(w.due, x)
	w.mu.Unlock()
	if x.number == 0 {
		return
	}
	delete(w.byNumber, x.number)
	_ = w.control(func(fd int) error {
		_, err := unix.InotifyRmWatch(fd, uint32(x.number))
		return err // the kernel may have dropped it with the group
	})
}

// setAlarm ends the next wait for events when an attempt is due.
func (w *Watcher) setAlarm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	var next time.Time // none
	for _, at := range w.due {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	_ = w.events.SetReadDeadline(next) // fails only after Close
}

// control calls f with the descriptor, which stays open meanwhile.
func (w *Watcher) control(f func(fd int) error) error {
	raw, err := w.events.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	if err := raw.Control(func(fd uintptr) { result = f(int(fd)) }); err != nil {
		return err
	}
	return result
}
