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

// maxQueuedInput bounds the bytes queued for a child that does not read. A write that does
// not fit waits, unless the queue is empty.
const maxQueuedInput = 8 << 20

// queuedCost is the overhead of a queued write, so that many small ones do not cost many
// times the limit.
const queuedCost = 64

// InputQuota bounds the bytes, including overhead, queued for the stdin of all processes of
// a principal. The zero value bounds nothing.
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

// maxRemembered bounds the memory of the latest writeIds, each of which costs idCost in
// addition to its bytes. A closed process keeps fewer, only for writes that are repeated
// because their connection broke before the response.
const (
	maxRemembered       = 256 << 10
	maxRememberedClosed = 8 << 10
	idCost              = 64
)

// input writes a child's stdin. The caller writes at once what the pipe accepts. The rest
// is queued for a goroutine that exists while the queue is not empty.
type input struct {
	file     *os.File
	ownsFile bool // file is a pipe, not the terminal's master
	quota    InputQuota
	tap      Tap // nil: none; set before the first write

	onResize func(protocol.TerminalSize) // called before the terminal is resized

	mu       sync.Mutex
	space    chan struct{} // closed when the queue shrinks; nil if nothing waits
	queue    []queued
	cost     int  // of queue, also taken from quota
	writing  bool // the goroutine exists
	ending   bool // no more input is accepted; the file is closed when the queue is empty
	closed   bool // the child reads no more input
	seen     map[string]bool
	order    []string // the keys of seen, oldest first
	seenCost int
}

// queued is one operation on the input: write data, resize the terminal, or, if both are
// nil, close the input.
type queued struct {
	data []byte
	size *protocol.TerminalSize
}

// cost returns the cost of the operation. One without data is free: there is at most one
// between two writes, and one at the end.
func (q queued) cost() int {
	if q.data == nil {
		return 0
	}
	return len(q.data) + queuedCost
}

func newInput(file *os.File, own bool, quota InputQuota) *input {
	return &input{file: file, ownsFile: own, quota: quota, onResize: func(protocol.TerminalSize) {}}
}

// hasSpaceLocked reports whether a write of n bytes need not wait.
func (in *input) hasSpaceLocked(n int) bool {
	return in.closed || in.ending || in.cost == 0 || in.cost+n+queuedCost <= maxQueuedInput
}

func (in *input) write(data []byte, writeID *string, cancel <-chan struct{}, wait func(func())) (_ protocol.WriteStatus, cancelled bool, _ error) {
	in.mu.Lock()
	if !in.hasSpaceLocked(len(data)) && !in.isRepeatLocked(writeID) {
		in.mu.Unlock()
		if wait == nil {
			return "", true, nil
		}
		wait(func() { cancelled = !in.waitSpace(len(data), cancel) })
		if cancelled {
			return "", true, nil
		}
		in.mu.Lock()
	}
	defer in.mu.Unlock()
	switch {
	case in.isRepeatLocked(writeID):
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
		// The write is accepted even if the child exits before it has read all of
		// it.
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

// writeNowLocked writes what the pipe accepts without blocking, and returns how many bytes
// that was.
func (in *input) writeNowLocked(data []byte) int {
	n, err := writeAvailable(in.file, data)
	if err != nil {
		in.closeLocked()
	}
	return n
}

// waitSpace waits until n bytes fit; false means that cancel was closed first.
func (in *input) waitSpace(n int, cancel <-chan struct{}) bool {
	for {
		in.mu.Lock()
		if in.hasSpaceLocked(n) {
			in.mu.Unlock()
			return true
		}
		if in.space == nil {
			in.space = make(chan struct{})
		}
		space := in.space
		in.mu.Unlock()
		select {
		case <-space:
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
		go in.writeQueued()
	}
}

// end closes the input once everything queued has been written.
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
		in.wakeLocked() // refuse waiting writes
	}
}

// ended reports whether writes are refused.
func (in *input) ended() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.closed || in.ending
}

// resize resizes the terminal once everything queued has been written.
func (in *input) resize(size protocol.TerminalSize) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	last := len(in.queue) - 1
	switch {
	case in.closed:
		return nil // the terminal is gone
	case last < 0:
		return in.setSize(size)
	case last > 0 && in.queue[last].size != nil: // the first may be in progress
		in.queue[last].size = &size
	default:
		in.enqueueLocked(queued{size: &size})
	}
	return nil
}

// writeQueued performs the queued operations, blocking while the child does not read. Closing the
// file unblocks it.
func (in *input) writeQueued() {
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
			in.wakeLocked()
		}
		in.mu.Unlock()
	}
}

// do performs an operation. It returns false if the input is to be closed.
func (in *input) do(q queued) bool {
	switch {
	case q.size != nil:
		// An error is ignored: writing can go on.
		_ = in.setSize(*q.size)
		return true
	case q.data != nil:
		return in.writeAll(q.data)
	}
	return false
}

// setSize resizes the terminal. It calls onResize and the tap first, so that they precede
// what the program draws then.
func (in *input) setSize(size protocol.TerminalSize) error {
	in.onResize(size)
	if in.tap != nil {
		in.tap.Resized(size)
	}
	return resize(in.file, size)
}

// writeAll writes data, however long it blocks, and reports whether the child still reads.
// A lack of kernel memory for the pipe does not end the input.
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

// memoryPause is the pause between two attempts to write while the kernel is out of memory.
const memoryPause = 10 * time.Millisecond

func (in *input) wakeLocked() {
	if in.space != nil {
		close(in.space)
		in.space = nil
	}
}

// close closes the input and drops the queue.
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
	in.wakeLocked()
	if in.ownsFile {
		_ = in.file.Close()
	}
}

func (in *input) isRepeatLocked(writeID *string) bool {
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
	in.seenCost += len(*writeID) + idCost
	in.trimWriteIDsLocked(maxRemembered)
}

// trimWriteIDsLocked forgets the oldest writeIds until the rest costs no more than limit.
func (in *input) trimWriteIDsLocked(limit int) {
	for in.seenCost > limit {
		oldest := in.order[0]
		in.order[0], in.order = "", in.order[1:]
		delete(in.seen, oldest)
		in.seenCost -= len(oldest) + idCost
	}
}

// trimWriteIDs forgets most writeIds after the process has closed.
func (in *input) trimWriteIDs() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.trimWriteIDsLocked(maxRememberedClosed)
	in.order = slices.Clone(in.order) // frees the array of the forgotten ones
	in.seen = make(map[string]bool, len(in.order))
	for _, id := range in.order {
		in.seen[id] = true
	}
}

// Tap observes the input of a process: accepted writes and terminal sizes. Its methods must
// not block or retain data.
type Tap interface {
	Wrote(data []byte)
	Resized(size protocol.TerminalSize)
}
