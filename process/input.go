package process

import (
	"os"
	"sync"

	"execserver/protocol"
)

// maxQueuedInput is how many bytes wait for a child that does not read; a write
// that finds less than its size free waits, unless the queue is empty.
const maxQueuedInput = 8 << 20

// rememberedWrites is how many writeIds are remembered, the latest ones.
const rememberedWrites = 4096

// input feeds a child's stdin. What the child's pipe takes at once is written
// by the caller; the rest is queued for a goroutine that exists while there is
// a queue.
type input struct {
	file *os.File
	own  bool // file is a pipe of its own, not the terminal

	mu      sync.Mutex
	room    chan struct{} // closed when the queue shrinks; nil when nobody waits
	queue   [][]byte
	queued  int
	writing bool // the goroutine exists, or a caller is writing
	closed  bool // the child does not take input any more
	seen    map[string]bool
	order   []string // of seen, a ring once it is full
	oldest  int
}

func newInput(file *os.File, own bool) *input {
	return &input{file: file, own: own}
}

// hasRoom reports whether a write of n bytes need not wait.
func (in *input) hasRoom(n int) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.hasRoomLocked(n)
}

func (in *input) hasRoomLocked(n int) bool {
	return in.closed || in.queued == 0 || in.queued+n <= maxQueuedInput
}

func (in *input) write(data []byte, writeID *string, cancel <-chan struct{}, wait func(func())) (protocol.WriteStatus, bool) {
	in.mu.Lock()
	if !in.hasRoomLocked(len(data)) && !in.repeatedLocked(writeID) {
		in.mu.Unlock()
		cancelled := false
		wait(func() { cancelled = !in.waitRoom(len(data), cancel) })
		if cancelled {
			return "", true
		}
		in.mu.Lock()
	}
	defer in.mu.Unlock()
	switch {
	case in.repeatedLocked(writeID):
		return protocol.WriteAccepted, false
	case in.closed:
		return protocol.WriteStdinClosed, false
	}
	if !in.writing && len(data) > 0 {
		data = in.writeNowLocked(data)
		if in.closed {
			return protocol.WriteStdinClosed, false
		}
	}
	if len(data) > 0 {
		in.queue = append(in.queue, append([]byte(nil), data...))
		in.queued += len(data)
		if !in.writing {
			in.writing = true
			go in.drain()
		}
	}
	in.rememberLocked(writeID)
	return protocol.WriteAccepted, false
}

// writeNowLocked writes what the child takes at once, without blocking, and
// returns the rest.
func (in *input) writeNowLocked(data []byte) []byte {
	n, err := writeAvailable(in.file, data)
	if err != nil {
		in.closeLocked()
		return nil
	}
	return data[n:]
}

// waitRoom waits until hasRoom; false means that cancel was closed first.
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

// drain writes the queue, blocking while the child does not read; close of the
// file unblocks it.
func (in *input) drain() {
	for {
		in.mu.Lock()
		if len(in.queue) == 0 || in.closed {
			in.writing = false
			in.mu.Unlock()
			return
		}
		data := in.queue[0]
		in.mu.Unlock()
		_, err := in.file.Write(data)
		in.mu.Lock()
		if err != nil {
			in.closeLocked()
		} else if !in.closed {
			in.queue[0] = nil
			in.queue = in.queue[1:]
			in.queued -= len(data)
			in.signalLocked()
		}
		in.mu.Unlock()
	}
}

func (in *input) signalLocked() {
	if in.room != nil {
		close(in.room)
		in.room = nil
	}
}

// close ends the input; what is queued is dropped, for nobody reads it.
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
	in.queue, in.queued = nil, 0
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
	if len(in.order) < rememberedWrites {
		in.order = append(in.order, *writeID)
		return
	}
	delete(in.seen, in.order[in.oldest])
	in.order[in.oldest] = *writeID
	in.oldest = (in.oldest + 1) % rememberedWrites
}
