package cgroup

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// Watcher tells when groups may have become empty. It needs one descriptor for
// all of them, and nothing while nothing changes. All methods may be called
// concurrently.
type Watcher struct {
	events *os.File // inotify
	done   chan struct{}

	mu      sync.Mutex
	watches map[int32]*watched // by the number that the kernel has given
	numbers map[*Group]int32
}

type watched struct {
	group   *Group
	changed func()
}

// NewWatcher makes a watcher.
func NewWatcher() (*Watcher, error) {
	fd, err := sys.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	w := &Watcher{
		events: sys.NewFile(uintptr(fd), "inotify"), done: make(chan struct{}),
		watches: make(map[int32]*watched), numbers: make(map[*Group]int32),
	}
	go w.run() // until Close
	return w, nil
}

// Watch calls changed on the watcher's goroutine when the group has become empty
// or is no longer so, until Forget or Close. The caller looks once itself, for what
// was before.
func (w *Watcher) Watch(g *Group, changed func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.numbers[g]; ok {
		return nil
	}
	number := 0
	err := w.control(func(fd int) (err error) {
		number, err = sys.InotifyAddWatch(fd, filepath.Join(g.path, "cgroup.events"), unix.IN_MODIFY)
		return err
	})
	if err != nil {
		return fmt.Errorf("watch control group %s: %w", g.path, err)
	}
	w.watches[int32(number)] = &watched{g, changed}
	w.numbers[g] = int32(number)
	return nil
}

// Forget ends the watch of a group, if there is one.
func (w *Watcher) Forget(g *Group) {
	w.mu.Lock()
	defer w.mu.Unlock()
	number, ok := w.numbers[g]
	if !ok {
		return
	}
	delete(w.numbers, g)
	delete(w.watches, number)
	_ = w.control(func(fd int) error {
		_, err := unix.InotifyRmWatch(fd, uint32(number))
		return err // the kernel may have forgotten it with the group
	})
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

// Close ends all watches, and waits until nothing is told any more. It must not be
// called by what Watch calls.
func (w *Watcher) Close() {
	_ = w.events.Close()
	<-w.done
}

func (w *Watcher) run() {
	defer close(w.done)
	buffer := make([]byte, 64*unix.SizeofInotifyEvent) // none of them has a name
	for {
		n, err := w.events.Read(buffer)
		if err != nil {
			return // closed
		}
		for rest := buffer[:n]; len(rest) >= unix.SizeofInotifyEvent; rest = rest[unix.SizeofInotifyEvent:] {
			number, mask := binary.NativeEndian.Uint32(rest), binary.NativeEndian.Uint32(rest[unsafe.Offsetof(unix.InotifyEvent{}.Mask):])
			for _, changed := range w.told(int32(number), mask) {
				changed()
			}
		}
	}
}

// told finds whom an event is for. When events were lost it is for everybody.
func (w *Watcher) told(number int32, mask uint32) (changed []func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if mask&unix.IN_Q_OVERFLOW != 0 {
		for _, watch := range w.watches {
			changed = append(changed, watch.changed)
		}
		return changed
	}
	watch := w.watches[number]
	switch {
	case watch == nil:
	case mask&unix.IN_IGNORED != 0: // the kernel has forgotten it
		delete(w.watches, number)
		delete(w.numbers, watch.group)
	default:
		changed = append(changed, watch.changed)
	}
	return changed
}
