package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// defaultSnapshotBytes is the default bound of the output in a Snapshot.
const defaultSnapshotBytes = 1 << 20

// Snapshot is the state of a command, and its output since the previous call of Collect.
type Snapshot struct {
	// Output is standard output and standard error, in the order in which the server read them.
	// Output longer than Cmd.SnapshotBytes is shortened to its beginning and end, with a line
	// between them that says how much is missing. The slice belongs to the caller.
	Output  []byte
	Omitted int64 // bytes left out of Output

	Running bool
	Exit    *Exit // nil while the process runs, and if its end is unknown
}

// collected is the output that Collect has not returned yet.
type collected struct {
	output *headTail
	exited chan struct{} // closed when the output before the exit is in output
	once   sync.Once
	done   chan struct{} // closed when Wait has returned
	err    error         // Wait's result; set before done is closed
}

func (c *collected) begin(*Process) {}

func (c *collected) end() {}

func (c *collected) event(e Event) {
	if e.Kind == Exited {
		c.once.Do(func() { close(c.exited) })
		return
	}
	_, _ = c.output.Write(e.Data) // never fails
}

// Collect returns the output of the command since the previous call. The first call starts the
// command. Each call waits until the command has exited or window has passed. Do not combine Collect
// with Start, Run or Wait. When ctx is done, only the call ends; the command's own context is that
// of Environment.Command.
//
// Cmd.Stdout and Cmd.Stderr, if set, receive the same output as it arrives, even between calls. A
// Write that blocks delays the output that Collect returns.
//
// Snapshot.Exit reports the exit; it is not an error. If Start fails, or ctx is done, Collect
// returns nil and the error; after the cause of ctx, the next call returns the output. If Wait
// fails, other than with an *ExitError, Collect returns that error together with the last output.
func (c *Cmd) Collect(ctx context.Context, window time.Duration) (*Snapshot, error) {
	if c.collected == nil {
		if err := c.startCollecting(); err != nil {
			return nil, err
		}
	}
	timer := time.NewTimer(window)
	defer timer.Stop()
	select {
	case <-c.collected.exited:
	case <-c.collected.done:
	case <-timer.C:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	c.awaitStragglers(ctx)
	s := new(Snapshot)
	s.Exit, _ = c.p.outcome()
	select {
	case <-c.collected.exited:
	default:
		s.Exit = nil // there is output before the exit
	}
	s.Running = s.Exit == nil
	s.Output, s.Omitted = c.collected.output.contents(true)
	select {
	case <-c.collected.done:
		var exit *ExitError
		if err := c.collected.err; err != nil && !errors.As(err, &exit) {
			s.Running = false
			return s, err
		}
	default:
	}
	return s, nil
}

// stragglerDelay is how long output from before the exit may arrive after it, with
// servers that do not number it before the exit.
const stragglerDelay = 100 * time.Millisecond

// awaitStragglers waits for output that the released servers often send after the exit.
func (c *Cmd) awaitStragglers(ctx context.Context) {
	select {
	case <-c.collected.exited:
	default:
		return
	}
	if c.env.conns.acks {
		return // this project's servers do not
	}
	select {
	case <-c.collected.done:
	case <-time.After(stragglerDelay):
	case <-ctx.Done():
	}
}

func (c *Cmd) startCollecting() error {
	if c.Process != nil {
		return errors.New("client: Collect after Start")
	}
	size := c.SnapshotBytes
	if size <= 0 {
		size = defaultSnapshotBytes
	}
	collected := &collected{output: &headTail{max: size}, exited: make(chan struct{}), done: make(chan struct{})}
	c.followers = append(c.followers, collected)
	if err := c.Start(); err != nil {
		return err
	}
	c.collected = collected
	go func() { // ends when Wait returns: with the process or the Environment
		defer close(collected.done)
		collected.err = c.Wait()
	}()
	return nil
}

// Communicate runs the command with input as its stdin, and returns its standard output and standard
// error. The error is as for Run. The server needs the capability processCloseStdin, unless the
// command runs on a terminal.
func (c *Cmd) Communicate(input []byte) (stdout, stderr []byte, err error) {
	if c.Stdin != nil || c.Stdout != nil || c.Stderr != nil {
		return nil, nil, errors.New("client: Stdin, Stdout or Stderr already set")
	}
	var out, errOut bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(input), &out, &errOut
	err = c.Run()
	return out.Bytes(), errOut.Bytes(), err
}

// Callbacks are called as a command starts, writes, reads input and exits. Nil callbacks are
// skipped. Begin, Delta and End are never called concurrently. If Start succeeds, End is called
// once, last. While Delta blocks, the process blocks once it has written more than the server
// retains.
type Callbacks struct {
	// Begin reports that the process has started. Start calls it.
	Begin func(p *Process)
	// Delta receives output of a stream: Stdout, Stderr or PTY. It must not keep or change
	// data.
	Delta func(stream string, data []byte)
	// Interaction receives data that the server has accepted for stdin. Process.Write calls
	// it, possibly while another callback is running. It must not keep or change data.
	Interaction func(data []byte)
	// End reports that the process has exited, after Delta has received all output before the
	// exit. Later output of descendants is not reported. s holds all output, shortened to
	// Cmd.SnapshotBytes. If the client has lost the process, err is a *LostError, and s.Exit is
	// nil.
	End func(s *Snapshot, err error)
}

// Follow adds callbacks for the command. Call it before Start or the first Collect. Stdout and
// Stderr may be set as well, but not StdoutPipe or StderrPipe.
func (c *Cmd) Follow(callbacks Callbacks) {
	f := &caller{callbacks: callbacks}
	f.output.max = c.SnapshotBytes
	if f.output.max <= 0 {
		f.output.max = defaultSnapshotBytes
	}
	c.followers = append(c.followers, f)
	c.p.written = callbacks.Interaction
}

// caller is the follower that calls callbacks.
type caller struct {
	callbacks Callbacks
	p         *Process
	output    headTail

	mu    sync.Mutex // held during Delta and End
	exit  *Exit
	timer *time.Timer // calls End after stragglerDelay
	ended bool
}

func (f *caller) begin(p *Process) {
	f.p = p
	if f.callbacks.Begin != nil {
		f.callbacks.Begin(p)
	}
}

func (f *caller) event(e Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.ended:
	case e.Kind == Exited && f.p.env.conns.acks:
		f.exit = e.Exit
		f.tellEndLocked()
	case e.Kind == Exited:
		f.exit = e.Exit
		f.timer = time.AfterFunc(stragglerDelay, f.tellEnd)
	default:
		_, _ = f.output.Write(e.Data) // never fails
		if f.callbacks.Delta != nil {
			f.callbacks.Delta(e.Stream, e.Data)
		}
	}
}

// end is called when no more events come: the process has closed, or has failed.
func (f *caller) end() {
	if f.timer != nil {
		f.timer.Stop()
	}
	f.tellEnd()
}

func (f *caller) tellEnd() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tellEndLocked()
}

func (f *caller) tellEndLocked() {
	if f.ended {
		return
	}
	f.ended = true
	var err error
	if f.exit == nil {
		_, err = f.p.outcome()
	}
	if f.callbacks.End == nil {
		return
	}
	s := &Snapshot{Exit: f.exit}
	s.Output, s.Omitted = f.output.contents(false)
	f.callbacks.End(s, err)
}

// headTail keeps the beginning and the end of the bytes written to it, up to max bytes.
// It may be used concurrently.
type headTail struct {
	max int

	mu    sync.Mutex
	head  []byte
	tail  []byte // a ring once it is full
	at    int    // index of the oldest byte of a full tail
	total int64
}

// Write implements io.Writer.
func (h *headTail) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(b)
	h.total += int64(n)
	room := min(h.max/2-len(h.head), len(b))
	h.head = append(h.head, b[:room]...)
	b = b[room:]
	size := h.max - h.max/2
	if len(b) > size {
		b = b[len(b)-size:]
	}
	room = min(size-len(h.tail), len(b))
	h.tail = append(h.tail, b[:room]...)
	for b = b[room:]; len(b) > 0; {
		k := copy(h.tail[h.at:], b)
		h.at = (h.at + k) % size
		b = b[k:]
	}
	return n, nil
}

// bytes returns the kept bytes, with a line between them about the missing ones.
func (h *headTail) bytes() []byte {
	text, _ := h.contents(false)
	return text
}

// contents returns the kept bytes, and how many are missing, which a line between them says.
// With reset it starts again.
func (h *headTail) contents(reset bool) (text []byte, omitted int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	omitted = h.total - int64(len(h.head)+len(h.tail))
	text = append(text, h.head...)
	if omitted > 0 {
		text = fmt.Appendf(text, "\n[%d bytes omitted]\n", omitted)
	}
	text = append(text, h.tail[h.at:]...)
	text = append(text, h.tail[:h.at]...)
	if reset {
		h.head, h.tail, h.at, h.total = nil, nil, 0, 0
	}
	return text, omitted
}
