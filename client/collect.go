package client

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"
)

// defaultSnapshotBytes is how much output a Snapshot holds unless the command
// says otherwise.
const defaultSnapshotBytes = 1 << 20

// Snapshot is what a command has done since the one before.
type Snapshot struct {
	// Output is what it wrote to standard output and standard error, in the
	// order in which the server read them: the beginning and the end, with a
	// line between them that says how much is left out when it is too much.
	Output  []byte
	Omitted int64 // bytes left out

	Running bool
	Exit    *Exit // nil while it runs
}

// collected is the output that Collect has not returned yet.
type collected struct {
	output *headTail
	exited chan struct{} // closed when what was written before the exit is in output
	once   sync.Once
	done   chan struct{} // closed when Wait has returned
	err    error         // what it returned; set before done is closed
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

// Collect starts the command unless it runs already, waits until it has exited
// or the window is over, and returns what it has written meanwhile. Call it again for
// what comes after: that is how an agent lets a command take its time without
// waiting for it. A command that is to be collected must not be started or
// waited for otherwise.
//
// How the command ends is no error, but Snapshot.Exit. The error is that of
// Start, an *ExitMissingError, or the cause of ctx, which takes nothing away.
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
		s.Exit = nil // there is output before it
	}
	s.Running = s.Exit == nil
	s.Output, s.Omitted = c.collected.output.take(true)
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

// stragglerDelay is how long after the exit there may be output that was written
// before it, with servers that do not number it before.
const stragglerDelay = 100 * time.Millisecond

// awaitStragglers waits for the output that the released servers often send after
// the exit.
func (c *Cmd) awaitStragglers(ctx context.Context) {
	select {
	case <-c.collected.exited:
	default:
		return
	}
	if c.env.acks {
		return // it is ours, and does not
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
	go func() {
		defer close(collected.done)
		collected.err = c.Wait()
	}()
	return nil
}

// Communicate runs the command with input as its stdin, and returns its standard
// output and standard error. The server needs the capability processCloseStdin,
// unless the command runs on a terminal.
func (c *Cmd) Communicate(input []byte) (stdout, stderr []byte, err error) {
	if c.Stdin != nil || c.Stdout != nil || c.Stderr != nil {
		return nil, nil, errors.New("client: Stdin, Stdout or Stderr already set")
	}
	var out, errOut bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(input), &out, &errOut
	err = c.Run()
	return out.Bytes(), errOut.Bytes(), err
}
