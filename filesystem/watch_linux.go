package filesystem

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

const (
	watchMask = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE |
		unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	// Links are looked after by those who open. A watch that is there already is
	// added to, for the kernel loses events while it replaces one.
	watchFlags = unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK | unix.IN_MASK_ADD
)

// watchSource feeds a journal from inotify. It speaks to the kernel itself:
// moving a directory within the tree is then a matter of moving a node, and
// no watch is lost or keeps its old name.
type watchSource struct {
	options WatchOptions
	journal *journal
	path    string
	ctx     context.Context // ends in close
	cancel  context.CancelFunc
	done    chan struct{}

	// Only the goroutine touches these, once it runs.
	inotify *os.File
	nodes   map[int32]*watchNode
	root    *watchNode
	moving  *watchNode // taken out of the tree, perhaps about to come back
	cookie  uint32     // of that move
}

func newWatchSource(ctx context.Context, root string, options WatchOptions, j *journal) (*watchSource, error) {
	s := &watchSource{options: options, journal: j, path: root, done: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	bound := context.AfterFunc(ctx, s.cancel) // the caller's context bounds the start only
	err := s.setUp()
	if !bound() && err == nil {
		s.inotify.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		s.cancel()
		return nil, err
	}
	go s.run()
	return s, nil
}

// setUp watches the tree as it is now.
func (s *watchSource) setUp() error {
	fd, err := sys.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return pathError("watch", s.path, err)
	}
	s.inotify = sys.NewFile(uintptr(fd), "inotify")
	s.nodes, s.moving = map[int32]*watchNode{}, nil
	s.root = &watchNode{name: s.path, children: map[string]*watchNode{}}
	dir, err := openDirectory(s.path)
	if err == nil {
		defer dir.Close()
		s.root.wd, err = s.watch(dir, s.path)
	}
	if err != nil {
		s.inotify.Close()
		return pathError("watch", s.path, err)
	}
	s.nodes[s.root.wd] = s.root
	s.scan(s.root, dir, false)
	return nil
}

func (s *watchSource) close() {
	s.cancel()
	<-s.done
}

func (s *watchSource) run() {
	defer close(s.done)
	defer func() { s.inotify.Close() }()
	buf := make([]byte, 64<<10)
	for s.ctx.Err() == nil {
		f := s.inotify
		stop := context.AfterFunc(s.ctx, func() { f.Close() })
		n, err := f.Read(buf)
		stop()
		if err == nil {
			err = s.handle(buf[:n])
		}
		if s.ctx.Err() != nil {
			return
		}
		if err != nil {
			// Events were lost, and with them what the tree looks like. That
			// is told last: who looks for himself then misses nothing.
			s.inotify.Close()
			err := s.setUp()
			s.journal.overflow(s.path)
			if err != nil {
				<-s.ctx.Done()
				return
			}
		}
	}
}

var errEventsLost = errors.New("events were lost")

// handle takes the events of one read apart.
func (s *watchSource) handle(buf []byte) error {
	for len(buf) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(buf[unsafe.Offsetof(unix.InotifyEvent{}.Wd):]))
		mask := binary.NativeEndian.Uint32(buf[unsafe.Offsetof(unix.InotifyEvent{}.Mask):])
		cookie := binary.NativeEndian.Uint32(buf[unsafe.Offsetof(unix.InotifyEvent{}.Cookie):])
		size := int(binary.NativeEndian.Uint32(buf[unsafe.Offsetof(unix.InotifyEvent{}.Len):]))
		buf = buf[unix.SizeofInotifyEvent:]
		name := strings.TrimRight(string(buf[:size]), "\x00")
		buf = buf[size:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			return errEventsLost
		}
		if err := s.event(s.nodes[wd], mask, cookie, name); err != nil {
			return err
		}
	}
	return nil
}

func (s *watchSource) event(n *watchNode, mask, cookie uint32, name string) error {
	if s.moving != nil && (mask&unix.IN_MOVED_TO == 0 || cookie != s.cookie) {
		s.drop(s.moving) // it has left the tree
		s.moving = nil
	}
	if n == nil {
		return nil
	}
	path, inTree := s.pathOf(n)
	switch {
	case mask&unix.IN_IGNORED != 0:
		delete(s.nodes, n.wd)
		return nil
	case !inTree:
		return nil
	case mask&unix.IN_UNMOUNT != 0:
		s.journal.overflow(path)
		return nil
	case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0:
		if n == s.root { // others are told by their parent
			s.journal.note(path, Removed)
		}
		return nil
	case name == "": // attributes of the directory itself, told by its parent
		return nil
	}
	path = join(path, name)
	directory := mask&unix.IN_ISDIR != 0
	switch {
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0, mask&unix.IN_MOVED_FROM != 0 && exists(path):
		// The latter when two names were exchanged, or this one is in use again.
		s.journal.note(path, Created)
		if directory {
			s.add(n, name, true)
		}
	case mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		s.journal.note(path, Removed)
		if child := n.children[name]; directory && child != nil {
			child.detach()
			if mask&unix.IN_MOVED_FROM != 0 {
				s.moving, s.cookie = child, cookie
			} else {
				s.drop(child)
			}
		}
	default:
		s.journal.note(path, Modified)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
