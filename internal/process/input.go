package process

import (
	"errors"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"execserver/internal/quota"
	"execserver/internal/sys"
	"execserver/protocol"
)

// maxQueuedInput is how many bytes wait for a child that does not read; a write
// that finds less than its size free waits, unless the queue is empty.
const maxQueuedInput = 8 << 20

// queuedCost is what a queued write counts besides its bytes, so that many small
// ones do not cost many times the limit.
const queuedCost = 64

// InputQuota bounds the bytes that are queued for the stdin of all processes of a principal,
// each queued write with a little more. The zero value bounds nothing.
type InputQuota struct {
	Quota     *quota.Quota
	Principal string
}

func (q InputQuota) take(n int) error {
	if q.Quota == nil {
		return nil
	}
	if refusal := q.Quota.TakeN(q.Principal, n); refusal != nil {
		return refusal
	}
	return nil
}

func (q InputQuota) release(n int) {
	if q.Quota != nil {
		q.Quota.ReleaseN(q.Principal, n)
	}
}

// maxRemembered bounds the memory of the latest writeIds, where each costs idCost besides
// its bytes. Those of a closed process may cost less: they are for writes that are sent
// again because their connection broke before the answer.
const (
	maxRemembered       = 256 << 10
	maxRememberedClosed = 8 << 10
	idCost              = 64
)

// input writes a child's stdin. The caller writes what the pipe accepts at once. The rest
// is queued for a goroutine that exists while there is a queue.
type input struct {
	file  *os.File
	own   bool // file is a pipe of its own, not the terminal
	quota InputQuota
	tap   Tap // nil: nobody; set before the first write

	sized func(protocol.TerminalSize) // called before the terminal gets a size

	mu      sync.Mutex
	room    chan struct{} // closed when the queue shrinks; nil when nobody waits
	queue   []queued
	cost    int  // of queue, which is also taken of quota
	writing bool // the goroutine exists
	ending  bool // no more is accepted; the input is closed when the queue is empty
	closed  bool // the child reads no more input
	seen    map[string]bool
	order   []string // of seen, the oldest first
	known   int      // what seen costs
}

// queued is one operation on the input: write data, or set the size of the terminal, or,
// if both are nil, close the input.
type queued struct {
	data []byte
	size *protocol.TerminalSize
}

// cost is what the operation counts. One without data counts nothing: there is at most one
// between two writes, and one at the end.
func (q queued) cost() int {
	if q.data == nil {
		return 0
	}
	return len(q.data) + queuedCost
}

func newInput(file *os.File, own bool, quota InputQuota) *input {
	return &input{file: file, own: own, quota: quota, sized: func(protocol.TerminalSize) {}}
}

// hasRoomLocked reports whether a write of n bytes need not wait.
func (in *input) hasRoomLocked(n int) bool {
	return in.closed || in.ending || in.cost == 0 || in.cost+n+queuedCost <= maxQueuedInput
}

func (in *input) write(data []byte, writeID *string, cancel <-chan struct{}, wait func(func())) (_ protocol.WriteStatus, cancelled bool, _ error) {
	in.mu.Lock()
	if !in.hasRoomLocked(len(data)) && !in.repeatedLocked(writeID) {
		in.mu.Unlock()
		if wait == nil {
			return "", true, nil
		}
		wait(func() { cancelled = !in.waitRoom(len(data), cancel) })
		if cancelled {
			return "", true, nil
		}
		in.mu.Lock()
	}
	defer in.mu.Unlock()
	switch {
	case in.repeatedLocked(writeID):
		return protocol.WriteAccepted, false, nil
	case in.closed, in.ending:
		return protocol.WriteStdinClosed, false, nil
	}
	cost := len(data) + queuedCost
	if err := in.quota.take(cost); err != nil {
		return "", false, err
	}
	all := data
	if !in.writing && len(data) > 0 {
		n := in.writeNowLocked(data)
		if in.closed && n == 0 {
			in.quota.release(cost)
			return protocol.WriteStdinClosed, false, nil
		}
		// The write is accepted even if the child ends after a part of it, or before it
		// reads the queue.
		data = data[n:]
	}
	if len(all) > 0 && in.tap != nil {
		in.tap.Wrote(all)
	}
	if len(data) > 0 && !in.closed {
		q := queued{data: append([]byte(nil), data...)}
		in.enqueueLocked(q)
		cost -= q.cost()
	}
	in.quota.release(cost)
	in.rememberLocked(writeID)
	return protocol.WriteAccepted, false, nil
}

// writeNowLocked writes what the pipe accepts without blocking, and returns how much that
// was.
func (in *input) writeNowLocked(data []byte) int {
	n, err := writeAvailable(in.file, data)
	if err != nil {
		in.closeLocked()
	}
	return n
}

// waitRoom waits until there is room for n bytes; false means that cancel was closed first.
func (in *input) waitRoom(n int, cancel <-chan struct{}) bool {
	for {
		in.mu.Lock()
		if in.hasRoomLocked(n) {
			in.mu.Unlock()
			return true
		}
		if in.room == nil {
			in.room = make(chan struct{})
		}
		room := in.room
		in.mu.Unlock()
		select {
		case <-room:
		case <-cancel:
			return false
		}
	}
}

func (in *input) enqueueLocked(q queued) {
	in.queue = append(in.queue, q)
	in.cost += q.cost()
	if !in.writing {
		in.writing = true
		go in.drain()
	}
}

// end closes the input once everything queued before has been written.
func (in *input) end() {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.closed, in.ending:
	case len(in.queue) == 0:
		in.closeLocked()
	default:
		in.ending = true
		in.enqueueLocked(queued{})
		in.signalLocked() // writes that wait are refused
	}
}

// ended reports whether writes are refused.
func (in *input) ended() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.closed || in.ending
}

// resize gives the terminal a size once everything queued before has been
// written.
func (in *input) resize(size protocol.TerminalSize) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	last := len(in.queue) - 1
	switch {
	case in.closed:
		return nil // nobody is there to see it
	case last < 0:
		return in.setSize(size)
	case last > 0 && in.queue[last].size != nil: // the first may be at work
		in.queue[last].size = &size
	default:
		in.enqueueLocked(queued{size: &size})
	}
	return nil
}

// drain works the queue off, blocking while the child does not read; close of
// the file unblocks it.
func (in *input) drain() {
	for {
		in.mu.Lock()
		if len(in.queue) == 0 || in.closed {
			in.writing = false
			in.mu.Unlock()
			return
		}
		next := in.queue[0]
		in.mu.Unlock()
		done := in.do(next)
		in.mu.Lock()
		if !done {
			in.closeLocked()
		} else if !in.closed {
			in.queue[0] = queued{}
			in.queue = in.queue[1:]
			in.cost -= next.cost()
			in.quota.release(next.cost())
			in.signalLocked()
		}
		in.mu.Unlock()
	}
}

// do is false when the input is to be closed.
func (in *input) do(q queued) bool {
	switch {
	case q.size != nil:
		// That the terminal refuses a size is no reason to stop writing.
		_ = in.setSize(*q.size)
		return true
	case q.data != nil:
		return in.writeAll(q.data)
	}
	return false
}

// setSize gives the terminal a size. What the program draws then comes after sized, and
// after what the tap hears.
func (in *input) setSize(size protocol.TerminalSize) error {
	in.sized(size)
	if in.tap != nil {
		in.tap.Resized(size)
	}
	return resize(in.file, size)
}

// writeAll writes data, no matter for how long it blocks, and reports whether the child
// reads more. That the kernel has no memory for a pipe's next page is no reason to end the
// child's input.
func (in *input) writeAll(data []byte) bool {
	for {
		n, err := sys.WriteTo(in.file, data)
		if !errors.Is(err, syscall.ENOMEM) {
			return err == nil
		}
		data = data[n:]
		time.Sleep(memoryPause)
	}
}

// memoryPause is between two attempts to write while the kernel is short of
// memory.
const memoryPause = 10 * time.Millisecond

func (in *input) signalLocked() {
	if in.room != nil {
		close(in.room)
		in.room = nil
	}
}

// close closes the input and drops the queue, which nobody would read.
func (in *input) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closeLocked()
}

func (in *input) closeLocked() {
	if in.closed {
		return
	}
	in.closed = true
	in.quota.release(in.cost)
	in.queue, in.cost = nil, 0
	in.signalLocked()
	if in.own {
		_ = in.file.Close()
	}
}

func (in *input) repeatedLocked(writeID *string) bool {
	return writeID != nil && in.seen[*writeID]
}

func (in *input) rememberLocked(writeID *string) {
	if writeID == nil {
		return
	}
	if in.seen == nil {
		in.seen = make(map[string]bool)
	}
	in.seen[*writeID] = true
	in.order = append(in.order, *writeID)
	in.known += len(*writeID) + idCost
	in.forgetLocked(maxRemembered)
}

// forgetLocked forgets the oldest writeIds until the others cost no more than most.
func (in *input) forgetLocked(most int) {
	for in.known > most {
		oldest := in.order[0]
		in.order[0], in.order = "", in.order[1:]
		delete(in.seen, oldest)
		in.known -= len(oldest) + idCost
	}
}

// forget forgets most writeIds, because the process has closed.
func (in *input) forget() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.forgetLocked(maxRememberedClosed)
	in.order = slices.Clone(in.order) // in memory of its size
	in.seen = make(map[string]bool, len(in.order))
	for _, id := range in.order {
		in.seen[id] = true
	}
}
