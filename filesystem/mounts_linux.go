package filesystem

import (
	"os"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// mountWatch tells when a file system is mounted or unmounted.
//
// The kernel marks the mount table as being in an exceptional state when it
// has changed, once for every time it is opened: whoever looks first uses it
// up. The runtime's poller looks at everything it is given, but for other
// states. So it is given an epoll descriptor that wraps the table, to be woken,
// and the table, opened once more, says whether there was a reason. This way
// nobody holds a thread while waiting, and no change goes unseen.
type mountWatch struct {
	changed chan struct{} // closed after the first change, or when in doubt
	table   int           // to look at
	bell    int           // to be woken by
	poll    *os.File      // wraps bell
	done    chan struct{}
}

func newMountWatch() (m *mountWatch, err error) {
	m = &mountWatch{table: -1, bell: -1, changed: make(chan struct{}), done: make(chan struct{})}
	defer func() {
		if err != nil {
			m.release()
		}
	}()
	const name = "/proc/self/mountinfo"
	if m.table, err = sys.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return nil, err
	}
	if m.bell, err = sys.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return nil, err
	}
	epoll, err := sys.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	err = sys.EpollCtl(epoll, unix.EPOLL_CTL_ADD, m.bell, &unix.EpollEvent{Events: unix.EPOLLPRI, Fd: int32(m.bell)})
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
	conn.Read(func(uintptr) bool { // returns when closed, too
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
	for _, fd := range []int{m.table, m.bell} {
		if fd >= 0 {
			sys.Close(fd)
		}
	}
}
