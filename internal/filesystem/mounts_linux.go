package filesystem

import (
	"os"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// mountWatch reports that a file system was mounted or unmounted.
//
// After a change the kernel puts the mount table into an exceptional state, once for each
// time it was opened; the first poll consumes it. The runtime's poller polls every
// descriptor that it is given, but for other states. So mountWatch opens the table twice.
// The poller gets an epoll descriptor that wraps one of them and wakes up; polling the
// other one says whether the table has changed. This way no thread blocks, and no change
// is missed.
type mountWatch struct {
	changed chan struct{} // closed after the first change, or when in doubt
	table   int           // polled after a wake-up
	bell    int           // wrapped by poll
	poll    *os.File      // the epoll descriptor, for the runtime's poller
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
	for _, fd := range []int{m.table, m.bell} {
		if fd >= 0 {
			sys.Close(fd)
		}
	}
}
