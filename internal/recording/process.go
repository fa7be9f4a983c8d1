package recording

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"execserver/internal/output"
	"execserver/internal/session"
	"execserver/protocol"
)

// maxTapBytes bounds the input that waits to be written. More is not recorded.
const maxTapBytes = 1 << 20

// flushBytes is how much of a recording is written at once.
const flushBytes = 64 << 10

// idleBytes is the maximum size of the buffer that an idle recording keeps.
const idleBytes = 4 << 10

// recording records one process. Its goroutine reads the process's log as an observer does, so
// the process never waits for the recording.
type recording struct {
	recorder *Recorder
	about    session.Recorded
	id       string
	source   *output.Log
	done     chan struct{}

	mu        sync.Mutex
	tapEvents []tapEvent
	tapBytes  int
	lost      int    // bytes of input that were not recorded
	wake      func() // ends a wait for output
	stopped   bool   // nothing more is recorded

	counted int64 // of the file, in Recorder.total; guarded by Recorder.mu

	// Only the goroutine uses these.
	encoder
	file *os.File
	size int64 // of file
}

// tapEvent is an event that is not in the log: input or a change of size.
type tapEvent struct {
	at    time.Time
	after uint64 // bytes of output before it
	code  byte
	data  string
}

// Done implements session.Recording.
func (r *recording) Done() <-chan struct{} { return r.done }

// Wrote implements process.Tap.
func (r *recording) Wrote(data []byte) {
	if !r.recorder.opts.Input {
		return
	}
	for piece := range pieces(data) {
		r.tap(codeInput, string(piece))
	}
}

// Resized implements process.Tap.
func (r *recording) Resized(size protocol.TerminalSize) {
	r.tap(codeResize, fmt.Sprintf("%dx%d", size.Cols, size.Rows))
}

func (r *recording) tap(code byte, data string) {
	s := tapEvent{time.Now(), r.source.Tail().Offset, code, data}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.stopped:
	case r.tapBytes+len(data)+64 > maxTapBytes:
		r.lost += len(data)
	default:
		r.tapEvents = append(r.tapEvents, s)
		r.tapBytes += len(data) + 64
		r.wake()
	}
}

// takeTapEvents returns the waiting events, with a marker for lost bytes.
func (r *recording) takeTapEvents() []tapEvent {
	r.mu.Lock()
	defer r.mu.Unlock()
	tapEvents := r.tapEvents
	if r.lost > 0 {
		tapEvents = append(tapEvents, tapEvent{time.Now(), r.source.Tail().Offset, codeMarker, fmt.Sprintf("%d bytes of input are missing here", r.lost)})
	}
	r.tapEvents, r.tapBytes, r.lost = nil, 0, 0
	return tapEvents
}

// run records a process, and ends with it, when the recording must stop, or soon after ctx.
func (r *recording) run(ctx context.Context) {
	defer close(r.done)
	err := r.recorder.create(r)
	if err != nil {
		r.recorder.stopped(r, reason(err), err)
	} else {
		r.follow(ctx)
	}
	r.mu.Lock()
	r.stopped, r.tapEvents = true, nil
	r.mu.Unlock()
	r.recorder.finish(r)
}

// follow writes the events of the process until it closes.
func (r *recording) follow(ctx context.Context) {
	var at output.Position
	var tapEvents []tapEvent
	for closed := false; !closed; {
		event, ok := r.source.Peek(at)
		until := at.Offset
		if ok {
			until = event.Offset
		}
		if len(tapEvents) == 0 {
			tapEvents = r.takeTapEvents() // later than Peek: they may belong before the event
		}
		for len(tapEvents) > 0 && tapEvents[0].after <= until {
			r.event(tapEvents[0].at, tapEvents[0].code, tapEvents[0].data)
			tapEvents = tapEvents[1:]
		}
		if ok {
			r.add(event, event.Offset-at.Offset)
			r.source.Return(event)
			at = output.Position{Seq: event.Seq, Offset: event.Offset + uint64(len(event.Output.Data))}
			closed = event.Kind == output.Closed
		}
		if len(r.lines) >= flushBytes || !ok || closed {
			if !r.flush() || ctx.Err() != nil {
				return
			}
		}
		if !ok {
			r.await(ctx, at)
		}
	}
}

// add appends an event of the log. missing is the number of bytes of output lost before it.
func (r *recording) add(event output.Event, missing uint64) {
	now := time.Now()
	if missing > 0 {
		r.recorder.missing.Add(missing)
		r.event(now, codeMarker, fmt.Sprintf("%d bytes of output are missing here", missing))
	}
	switch event.Kind {
	case output.Output:
		r.output(now, event.Output.Stream, event.Output.Data)
	case output.Exited:
		r.exit(now, event.Exit)
	}
}

// await waits for the next event, and releases memory meanwhile.
func (r *recording) await(ctx context.Context, at output.Position) {
	if cap(r.lines) > idleBytes {
		r.lines = nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	r.wake = cancel
	waiting := len(r.tapEvents) > 0
	r.mu.Unlock()
	if !waiting {
		r.source.Await(ctx, at)
	}
}

// flush writes the lines to the file, and reports whether the recording continues.
func (r *recording) flush() bool {
	if len(r.lines) == 0 {
		return true
	}
	full := r.recorder.reserve(r, int64(len(r.lines)))
	if full != nil {
		r.lines = appendEvent(r.fitting(), r.last, codeMarker, "the recording stops here: "+full.Error())
	}
	n, err := r.file.Write(r.lines)
	r.lines = r.lines[:0]
	switch {
	case err != nil:
		r.recorder.stopped(r, stopError, err)
		if n > 0 {
			_ = r.file.Truncate(r.size) // removes a torn line
		}
		return false
	case full != nil:
		r.recorder.stopped(r, reason(full), full)
	}
	r.size += int64(n)
	return full == nil
}

// fitting returns the lines that fit the limits, and at least the header.
func (r *recording) fitting() []byte {
	room := min(max(0, r.recorder.opts.MaxBytes-r.size), int64(len(r.lines)))
	lines := r.lines[:bytes.LastIndexByte(r.lines[:room], '\n')+1]
	switch {
	case len(lines) > 0 && r.recorder.reserve(r, int64(len(lines))) == nil:
		return lines
	case r.size == 0:
		return r.lines[:bytes.IndexByte(r.lines, '\n')+1]
	}
	return r.lines[:0]
}
