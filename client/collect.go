package client

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"
)

// defaultSnapshotBytes is the default bound of the output in a Snapshot.
const defaultSnapshotBytes = 1 << 20

// Snapshot is the output and state of a command since the previous Snapshot.
type Snapshot struct {
	// Output is standard output and standard error, in the order in which the server read
	// them. Beyond Cmd.SnapshotBytes, it has the beginning and the end, with a line between
	// them that says how much is missing. It belongs to the caller.
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

// Collect starts the command unless it runs already, waits until it has exited or the
// window is over, and returns the output since the last call. Call it again for later
// output: an agent can let a command continue without waiting for it. Do not call Start
// or Wait of the same command. The command itself ends with the context given to
// Environment.Command, not with ctx.
//
// Cmd.Stdout and Cmd.Stderr, where they are set, receive the same output as it comes, while
// no Collect is called, too. A Write that blocks holds up what Collect returns.
//
// The way in which the command ends is not an error, but Snapshot.Exit. The error is that
// of Start; that of Wait if it is no *ExitError, together with the last output; or the
// cause of ctx, and then the next call returns the output.
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
	if c.env.acks {
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

// Communicate runs the command with input as its stdin, and returns its standard output
// and standard error, all of it in memory. Its error is that of Run. The server needs the
// capability processCloseStdin, unless the command runs on a terminal.
func (c *Cmd) Communicate(input []byte) (stdout, stderr []byte, err error) {
	if c.Stdin != nil || c.Stdout != nil || c.Stderr != nil {
		return nil, nil, errors.New("client: Stdin, Stdout or Stderr already set")
	}
	var out, errOut bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(input), &out, &errOut
	err = c.Run()
	return out.Bytes(), errOut.Bytes(), err
}
