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

// Watcher removes groups when nothing runs in them any more. It needs one
// descriptor for all of them, and does nothing while nothing changes. All methods
// may be called concurrently.
type Watcher struct {
	events *os.File // inotify
	done   chan struct{}
	told   map[int32]*watched // by the number that the kernel has given; run's alone

	mu      sync.Mutex
	watches map[*Group]*watched
	due     map[*watched]time.Time // when to try to remove a group
}

// watched is a group that has not been removed yet.
type watched struct {
	group   *Group
	removed func()

	// run's alone
	number int32         // by which the kernel tells of it; 0: it does not
	pause  time.Duration // before the group is tried again
}

// The pauses between attempts to remove a group of which the kernel tells nothing
// double from minPause to maxPause.
const (
	minPause = 10 * time.Millisecond
	maxPause = time.Minute
)

// NewWatcher makes a watcher.
func NewWatcher() (*Watcher, error) {
	fd, err := sys.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	w := &Watcher{
		events: sys.NewFile(uintptr(fd), "inotify"), done: make(chan struct{}), told: make(map[int32]*watched),
		watches: make(map[*Group]*watched), due: make(map[*watched]time.Time),
	}
	go w.run() // until Close
	return w, nil
}

// RemoveEmpty removes the group as soon as nothing runs in it, and then calls
// removed on the watcher's goroutine; it never does after Close. For a group that
// the watcher has already it does nothing but look at once.
func (w *Watcher) RemoveEmpty(g *Group, removed func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.watches[g]
	if x == nil {
		x = &watched{group: g, removed: removed}
		w.watches[g] = x
	}
	w.due[x] = time.Now()
	_ = w.events.SetReadDeadline(time.Now()) // run goes on; it is closed, or works
}

// Close lets go of all groups, and waits until the watcher does nothing any more.
// It must not be called by what RemoveEmpty calls.
func (w *Watcher) Close() {
	_ = w.events.Close()
	<-w.done
}

func (w *Watcher) run() {
	defer close(w.done)
	buffer := make([]byte, 64*unix.SizeofInotifyEvent) // none of them has a name
	for {
		n, err := w.events.Read(buffer)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return // closed
		}
		for rest := buffer[:max(n, 0)]; len(rest) >= unix.SizeofInotifyEvent; rest = rest[unix.SizeofInotifyEvent:] {
			number, mask := binary.NativeEndian.Uint32(rest), binary.NativeEndian.Uint32(rest[unsafe.Offsetof(unix.InotifyEvent{}.Mask):])
			w.note(int32(number), mask)
		}
		for _, x := range w.takeDue() {
			w.attempt(x)
		}
		w.setAlarm()
	}
}

// note finds which group an event is about. When events were lost it is all.
func (w *Watcher) note(number int32, mask uint32) {
	about := []*watched{w.told[number]}
	if mask&unix.IN_Q_OVERFLOW != 0 {
		about = slices.Collect(maps.Values(w.told))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range about {
		if x == nil {
			continue
		}
		if mask&unix.IN_IGNORED != 0 { // the kernel has forgotten it
			delete(w.told, number)
			x.number = 0
		}
		x.pause = 0
		w.due[x] = time.Now()
	}
}

// takeDue returns the groups whose time has come.
func (w *Watcher) takeDue() (now []*watched) {
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

// attempt removes a group if nothing runs in it. Otherwise the kernel tells when
// that is so; where it does not, or refuses to remove the group, there is another
// attempt.
func (w *Watcher) attempt(x *watched) {
	w.watch(x) // before the look, or it might miss the change
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

// watch has the kernel tell when a group becomes empty.
func (w *Watcher) watch(x *watched) {
	if x.number != 0 {
		return
	}
	number := 0
	err := w.control(func(fd int) (err error) {
		number, err = sys.InotifyAddWatch(fd, filepath.Join(x.group.path, "cgroup.events"), unix.IN_MODIFY)
		return err
	})
	if err == nil { // else the pauses have to do
		x.number = int32(number)
		w.told[x.number] = x
	}
}

// forget lets go of a group that has been removed.
func (w *Watcher) forget(x *watched) {
	w.mu.Lock()
	delete(w.watches, x.group)
	delete(w.due, x)
	w.mu.Unlock()
	if x.number == 0 {
		return
	}
	delete(w.told, x.number)
	_ = w.control(func(fd int) error {
		_, err := unix.InotifyRmWatch(fd, uint32(x.number))
		return err // the kernel may have forgotten it with the group
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
	_ = w.events.SetReadDeadline(next) // it is closed, or works
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
