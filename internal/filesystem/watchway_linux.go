package filesystem

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// A watch follows a path, but the kernel watches directories. So the server also watches
// the directories on the way to the root: when one of them is moved, or a link there
// changes, the root is another directory or none, although nothing happened to it.

// wayMask are the events that change where a path leads.
const wayMask = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF

// recheckInterval is how often the server checks a way that it cannot watch.
const recheckInterval = time.Second

var errRootLost = errors.New("the path of the root leads elsewhere")

// wayToRoot records where the path of a root leads, and through which directories.
type wayToRoot struct {
	directories map[int32]map[string]bool // the names on the way, by the number of their directory
	complete    bool                      // all of them are watched
	end         fs.FileInfo               // the root; nil if there is none
}

// watchWay watches the way to the root, as far as it exists.
func (s *watchSource) watchWay() {
	s.way = wayToRoot{directories: map[int32]map[string]bool{}, complete: true}
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
		if links++; links > 40 {
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
	wd, err := s.addWatch(dir, wayMask)
	if err != nil {
		s.way.complete = false
		return
	}
	if s.way.directories[wd] == nil {
		s.way.directories[wd] = map[string]bool{}
	}
	s.way.directories[wd][name] = true
}

// blocks reports whether an event concerns the way to the root.
func (s *watchSource) blocks(wd int32, mask uint32, name string) bool {
	names := s.way.directories[wd]
	if names == nil {
		return false
	}
	return mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT) != 0 ||
		mask&(unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_MOVED_FROM|unix.IN_DELETE) != 0 && names[name]
}

// moved reports whether the path leads to another directory than before. The kernel sends
// no event when a mount causes it.
func (s *watchSource) moved() bool {
	now, err := os.Stat(s.path)
	if err != nil || s.way.end == nil {
		return err == nil || s.way.end != nil
	}
	return !os.SameFile(now, s.way.end)
}

// addWatch returns the kernel's number for a directory, and starts to watch the directory
// if necessary.
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
