package filesystem

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

const (
	watchMask = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE |
		unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	// The functions that open directories check for links. IN_MASK_ADD extends an
	// existing watch, because the kernel loses events while it replaces one.
	watchFlags = unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK | unix.IN_MASK_ADD
)

// watchSource feeds a journal from inotify. It uses inotify directly: moving a directory
// within the tree then means moving a node, and no watch is lost or keeps its old name.
type watchSource struct {
	options WatchOptions
	journal *journal
	path    string
	ctx     context.Context // ends in close
	cancel  context.CancelFunc
	done    chan struct{}

	// Once the goroutine runs, only the goroutine uses these.
	inotify   *os.File // nil if the system has none left
	buf       []byte
	nodes     map[int32]*watchNode
	root      *watchNode
	moving    *watchNode // removed from the tree, and may come back
	cookie    uint32     // of that move
	rootPath  rootPath
	restarted time.Time // when the watch of the tree last started anew
}

func newWatchSource(ctx context.Context, root string, options WatchOptions, j *journal) (*watchSource, error) {
	s := &watchSource{options: options, journal: j, path: root, done: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	bound := context.AfterFunc(ctx, s.cancel) // the caller's context bounds only the start
	err := s.setUp()
	if !bound() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		s.cancel()
		s.release()
		return nil, err
	}
	go s.run()
	return s, nil
}

// setUp watches the tree as it is now. After an error it still watches the way to the
// tree, unless there is no inotify.
func (s *watchSource) setUp() error {
	s.release()
	s.nodes, s.root, s.moving, s.rootPath = map[int32]*watchNode{}, nil, nil, rootPath{}
	fd, err := sys.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return pathError("watch", s.path, err)
	}
	s.inotify = sys.NewFile(uintptr(fd), "inotify")
	s.watchPath() // first, so that any later change is an event
	dir, err := s.openRoot()
	if err != nil {
		return pathError("watch", s.path, err)
	}
	defer dir.Close()
	root := &watchNode{name: s.path, children: map[string]*watchNode{}}
	if s.rootPath.end, err = dir.Stat(); err == nil {
		root.wd, err = s.watch(dir, s.path)
	}
	if err != nil {
		return pathError("watch", s.path, err)
	}
	s.root, s.nodes[root.wd] = root, root
	s.scan(root, dir, false)
	return nil
}

// openRoot opens the directory to which the path leads now, if it may be watched.
func (s *watchSource) openRoot() (*os.File, error) {
	if s.options.Permit == nil {
		return openDirectory(s.path)
	}
	permitted, err := OpenPermitted(s.path, s.options.Permit)
	if err != nil {
		return nil, err
	}
	defer permitted.Close()
	return openDirectory(fdPath(int(permitted.Fd())))
}

func (s *watchSource) close() {
	s.cancel()
	<-s.done
}

// release gives up all watches.
func (s *watchSource) release() {
	if s.inotify != nil {
		s.inotify.Close()
		s.inotify = nil
	}
}

func (s *watchSource) run() {
	defer close(s.done)
	defer s.release()
	for s.ctx.Err() == nil {
		if err := s.readEvents(); err != nil && s.ctx.Err() == nil {
			s.restart()
		}
	}
}

// readEvents waits for events and handles them. An error means that the tree must be read
// again.
func (s *watchSource) readEvents() error {
	if s.buf == nil {
		s.buf = make([]byte, 64<<10)
	}
	f := s.inotify
	deadline := time.Time{}
	if !s.rootPath.complete {
		deadline = time.Now().Add(recheckInterval)
	}
	if err := f.SetReadDeadline(deadline); err != nil {
		return err
	}
	stop := context.AfterFunc(s.ctx, func() { f.Close() })
	n, err := f.Read(s.buf)
	stop()
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	if s.rootMoved() { // so the paths of these events may be wrong
		return errRootLost
	}
	return s.handle(s.buf[:n])
}

// restart watches the tree to which the path leads now, or will lead. It reports an overflow
// once it watches again, so a client that reads the tree then misses nothing. If the tree is
// gone, it also reports one at once.
func (s *watchSource) restart() {
	s.release()
	for reported := false; ; reported = true {
		// Do not read a tree each time if it is replaced again and again.
		s.sleep(time.Until(s.restarted.Add(s.options.Debounce)))
		if s.ctx.Err() != nil {
			return
		}
		s.restarted = time.Now()
		err := s.setUp()
		if err == nil || !reported {
			s.journal.overflow(s.path)
		}
		switch {
		case err == nil:
			return
		case s.inotify == nil || !errors.Is(err, fs.ErrNotExist):
			s.sleep(recheckInterval)
			continue
		}
		for s.ctx.Err() == nil && s.readEvents() == nil {
		}
	}
}

// sleep waits for d, or until the watcher is closed.
func (s *watchSource) sleep(d time.Duration) {
	select {
	case <-s.ctx.Done():
	case <-time.After(d):
	}
}

var errEventsLost = errors.New("events were lost")

// handle handles the events of one read.
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
		if s.affectsPath(wd, mask, name) {
			return errRootLost
		}
		if s.nodes[wd] == nil && s.rootPath.directories[wd] != nil {
			continue // of a directory that is no longer watched
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
	case n == s.root && mask&(unix.IN_UNMOUNT|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0:
		return errRootLost
	case mask&unix.IN_UNMOUNT != 0:
		s.journal.overflow(path)
		return nil
	case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0: // the parent reports it
		return nil
	case name == "": // attributes of the directory itself, which the parent reports
		return nil
	}
	path = join(path, name)
	directory := mask&unix.IN_ISDIR != 0
	switch {
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0, mask&unix.IN_MOVED_FROM != 0 && exists(path):
		// A name is moved away and still exists when two names were exchanged, or when it
		// is in use again.
		s.journal.record(path, Created)
		if directory {
			s.add(n, name, true)
		}
	case mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		s.journal.record(path, Removed)
		if child := n.children[name]; directory && child != nil {
			child.detach()
			if mask&unix.IN_MOVED_FROM != 0 {
				s.moving, s.cookie = child, cookie
			} else {
				s.drop(child)
			}
		}
	default:
		s.journal.record(path, Modified)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// A watch follows a path, but the kernel watches directories. So the server also watches
// the directories on the way to the root: when one of them is moved, or a link in one of them
// changes, the path leads to another directory or none, although the old root did not change.

// pathMask are the events that change where a path leads.
const pathMask = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF

// recheckInterval is how often the server checks a path that it cannot watch.
const recheckInterval = time.Second

var errRootLost = errors.New("the path of the root leads elsewhere")

// rootPath records to which directory the path of a root leads, and through which others.
type rootPath struct {
	directories map[int32]map[string]bool // the names on the path, by the watch of their directory
	complete    bool                      // all of them are watched
	end         fs.FileInfo               // the root; nil if there is none
}

// watchPath watches the directories on the path to the root, as far as they exist.
func (s *watchSource) watchPath() {
	s.rootPath = rootPath{directories: map[int32]map[string]bool{}, complete: true}
	dir, rest := "/", strings.Split(s.path, "/")
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			dir = path.Dir(dir) // which has no links
			continue
		}
		s.watchName(dir, name)
		text, err := os.Readlink(join(dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return
		case err != nil: // not a link
			dir = join(dir, name)
			continue
		}
		if links++; links > maxLinks {
			return
		}
		if strings.HasPrefix(text, "/") {
			dir = "/"
		}
		rest = append(strings.Split(text, "/"), rest...)
	}
}

// watchName watches for changes of a name in a directory.
func (s *watchSource) watchName(dir, name string) {
	wd, err := s.addWatch(dir, pathMask)
	if err != nil {
		s.rootPath.complete = false
		return
	}
	if s.rootPath.directories[wd] == nil {
		s.rootPath.directories[wd] = map[string]bool{}
	}
	s.rootPath.directories[wd][name] = true
}

// affectsPath reports whether an event concerns the way to the root.
func (s *watchSource) affectsPath(wd int32, mask uint32, name string) bool {
	names := s.rootPath.directories[wd]
	if names == nil {
		return false
	}
	return mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT) != 0 ||
		mask&(unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_MOVED_FROM|unix.IN_DELETE) != 0 && names[name]
}

// rootMoved reports whether the path leads to another directory than before. The kernel sends
// no event when a mount causes it.
func (s *watchSource) rootMoved() bool {
	now, err := os.Stat(s.path)
	if err != nil || s.rootPath.end == nil {
		return err == nil || s.rootPath.end != nil
	}
	return !os.SameFile(now, s.rootPath.end)
}

// addWatch starts to watch a directory, unless it is watched already, and returns the watch
// descriptor.
func (s *watchSource) addWatch(path string, mask uint32) (wd int32, err error) {
	raw, err := s.inotify.SyscallConn()
	if err != nil {
		return 0, err
	}
	if controlErr := raw.Control(func(fd uintptr) {
		var n int
		n, err = sys.InotifyAddWatch(int(fd), path, mask|watchFlags)
		wd = int32(n)
	}); controlErr != nil {
		return 0, controlErr
	}
	return wd, err
}

// MaxWatchers returns how many watchers the system allows this user, including those of
// other programs.
func MaxWatchers() int {
	const usual = 128
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	if err != nil {
		return usual
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return usual
	}
	return n
}
