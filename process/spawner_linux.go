package process

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/fault"
)

// spawner starts children on threads that never end: the kernel sends the
// parent-death signal when the thread that made a child ends, not the process.
// Two are enough as a rule. A program on a file system that does not answer keeps
// a thread until it does, and there is another one for others.
//
// The threads have tables of descriptors of their own where the kernel grants
// them. A child starts with a copy of its parent's, whose descriptors execve
// closes one by one: in the program's there are some for each process and
// connection, and a start would take the longer the more of them there are.
type spawner struct {
	prepare sync.Mutex
	ready   bool
	own     bool  // the threads have tables of their own
	keep    []int // what a thread keeps of the program's, in order
	// gate and door are the ends of a socket. A message is the number of a call,
	// and brings the thread that takes it the descriptors for it.
	gate, door int
	places     chan struct{} // for calls, which are few enough for the socket

	mu       sync.Mutex
	threads  int
	last     uint32
	calls    map[uint32]*spawnCall // that no thread has taken yet
	watching bool                  // while calls wait, and not for long after that
	takes    uint64                // how many calls threads have taken
	seen     uint64                // takes, when watch looked last
}

const (
	maxSpawnThreads = 16
	maxSpawnCalls   = 64
	// spawnPatience is how long starts wait and none begins before there is another
	// thread.
	spawnPatience = 100 * time.Millisecond
	// maxSpawnFiles is more than any child gets.
	maxSpawnFiles = 16
)

// theSpawner is that of the program.
var theSpawner = spawner{calls: make(map[uint32]*spawnCall), places: make(chan struct{}, maxSpawnCalls)}

// spawnCall is what a thread does for a start.
type spawnCall struct {
	path  string
	argv  []string
	attr  *syscall.ProcAttr
	fds   []int // those of the child, and those of its directory and its control group, if there are such
	inDir bool  // there is one of the directory
	mark  uint64
	ended func(pid int, err error)
}

// start starts a child whose descriptors are files, and marks it. It begins in dir, if
// that is not nil, instead of where attr says.
func (s *spawner) start(path string, argv []string, attr *syscall.ProcAttr, files []*os.File, dir *os.File, mark uint64) (pid int, err error) {
	if err := s.begin(); err != nil {
		return 0, err
	}
	if err := fault.At("fork"); err != nil {
		return 0, err
	}
	s.places <- struct{}{}
	defer func() { <-s.places }()
	done := make(chan struct{})
	c := &spawnCall{path: path, argv: argv, attr: attr, mark: mark, ended: func(p int, e error) {
		pid, err = p, e
		close(done)
	}}
	for _, f := range files {
		c.fds = append(c.fds, int(f.Fd()))
	}
	if c.inDir = dir != nil; c.inDir {
		c.fds = append(c.fds, int(dir.Fd()))
	}
	if attr.Sys.UseCgroupFD {
		c.fds = append(c.fds, attr.Sys.CgroupFD)
	}
	if err := s.send(c); err != nil {
		return 0, err
	}
	<-done
	runtime.KeepAlive(files)
	runtime.KeepAlive(dir)
	return pid, err
}

// begin makes the first threads. The earlier it is called, the fewer descriptors
// of others they have for a moment.
func (s *spawner) begin() error {
	s.prepare.Lock()
	defer s.prepare.Unlock()
	if s.ready {
		return nil
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("make a socket for the threads that start processes", err)
	}
	s.gate, s.door = pair[0], pair[1]
	s.keep, err = keptDescriptors(s.door)
	if s.own = err == nil; s.own {
		s.own = s.thread() == nil
	}
	if !s.own {
		_ = s.thread()
	}
	s.threads = 1
	if s.thread() == nil { // it forks while the first waits for a program to be loaded
		s.threads++
	}
	s.ready = true
	return nil
}

// watch makes another thread when calls wait and no thread takes one.
func (s *spawner) watch() {
	s.mu.Lock()
	s.watching = len(s.calls) > 0
	again, more := s.watching, s.watching && s.takes == s.seen && s.threads < maxSpawnThreads
	if more {
		s.threads++
	}
	s.seen = s.takes
	s.mu.Unlock()
	if more && s.thread() != nil {
		s.mu.Lock()
		s.threads--
		s.mu.Unlock()
	}
	if again {
		time.AfterFunc(spawnPatience, s.watch)
	}
}

// thread makes a thread.
func (s *spawner) thread() error {
	prepared := make(chan error)
	go runSpawns(s, s.own, prepared)
	return <-prepared
}

func runSpawns(s *spawner, own bool, prepared chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// What others see of a program is what its first thread has, above all the
		// descriptors in /proc/self. While this goroutine keeps that thread,
		// another one gets another.
		prepared <- s.thread()
		runtime.UnlockOSThread()
		return
	}
	var err error
	if own {
		err = separateTable(s.keep, s.door)
	}
	prepared <- err
	for err == nil { // else the thread ends
		s.take(own)
	}
}

// keptDescriptors are standard error, door, and what the Go runtime waits and is
// woken with, which any of its threads may do.
func keptDescriptors(door int) (keep []int, err error) {
	// A pipe makes the runtime wait, if nothing has before.
	if r, w, err := os.Pipe(); err == nil {
		_, _ = r.Close(), w.Close()
	}
	const table = "/proc/self/fd/"
	entries, err := os.ReadDir(table)
	if err != nil {
		return nil, err
	}
	keep = []int{2, door}
	waits, wakes := false, false
	for _, entry := range entries {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			return nil, err
		}
		switch target, _ := os.Readlink(table + entry.Name()); target { // "": closed meanwhile
		case "anon_inode:[eventpoll]":
			waits = true
			keep = append(keep, fd)
		case "anon_inode:[eventfd]":
			wakes = true
			keep = append(keep, fd)
		}
	}
	if !waits || !wakes {
		return nil, errors.New("the Go runtime waits with something else than it used to")
	}
	slices.Sort(keep)
	return keep, nil
}

// separateTable gives the calling thread a table of descriptors of its own with
// none but those to keep, and with door in the place of the streams of children.
// Those behind the last one are not copied, which takes no time and calls no file
// system.
func separateTable(keep []int, door int) error {
	last := keep[len(keep)-1]
	if err := unix.CloseRange(uint(last)+1, math.MaxUint32, unix.CLOSE_RANGE_UNSHARE); err != nil {
		return os.NewSyscallError("close_range", err)
	}
	for fd := range last {
		switch {
		case slices.Contains(keep, fd):
		case fd < 2:
			_ = unix.Dup3(door, fd, unix.O_CLOEXEC)
		default:
			_ = unix.Close(fd) // it may not be open
		}
	}
	return nil
}

// send leaves a call to the threads.
func (s *spawner) send(c *spawnCall) error {
	s.mu.Lock()
	s.last++
	number := s.last
	s.calls[number] = c
	if !s.watching {
		s.watching, s.seen = true, s.takes
		time.AfterFunc(spawnPatience, s.watch)
	}
	s.mu.Unlock()
	var rights []byte
	if s.own {
		rights = unix.UnixRights(c.fds...)
	}
	for {
		err := unix.Sendmsg(s.gate, binary.NativeEndian.AppendUint32(nil, number), rights, nil, 0)
		if err == nil {
			return nil
		}
		if err != unix.EINTR {
			s.taken(number)
			return os.NewSyscallError("pass descriptors on to the thread that starts processes", err)
		}
	}
}

// taken takes a call off the list.
func (s *spawner) taken(number uint32) *spawnCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[number]
	delete(s.calls, number)
	s.takes++
	return c
}

// take waits for a call and does what it is for.
func (s *spawner) take(own bool) {
	number, oob := make([]byte, 4), make([]byte, unix.CmsgSpace(4*maxSpawnFiles))
	n, size, _, _, err := unix.Recvmsg(s.door, number, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil || n != len(number) {
		return // EINTR
	}
	c := s.taken(binary.NativeEndian.Uint32(number))
	if !own {
		c.ended(c.exec(c.fds, own))
		return
	}
	fds, err := parseRights(oob[:size])
	if err == nil && len(fds) != len(c.fds) {
		err = fmt.Errorf("the kernel passes on %d of %d descriptors", len(fds), len(c.fds))
	}
	pid := 0
	if err == nil {
		pid, err = c.exec(fds, own)
	}
	closeAll(fds)
	c.ended(pid, err)
}

// exec makes the child with its descriptors as the thread has them.
func (c *spawnCall) exec(fds []int, own bool) (pid int, err error) {
	if c.attr.Sys.UseCgroupFD {
		last := len(fds) - 1
		c.attr.Sys.CgroupFD, fds = fds[last], fds[:last]
	}
	if c.inDir {
		last := len(fds) - 1
		c.attr.Dir, fds = "/proc/self/fd/"+strconv.Itoa(fds[last]), fds[:last]
	}
	for _, fd := range fds {
		c.attr.Files = append(c.attr.Files, uintptr(fd))
	}
	return forkExec(c, own)
}

func parseRights(oob []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		return nil, err
	}
	return unix.ParseUnixRights(&messages[0])
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
