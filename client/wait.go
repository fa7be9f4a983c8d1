package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// cancel runs on a goroutine of its own when the command's context has ended. The goroutine
// ends when the caller's Cancel has returned, because everything else has a time limit.
func (c *Cmd) cancel() {
	defer close(c.cancelled)
	if c.ended() {
		return
	}
	if c.Cancel != nil {
		c.cancelled <- c.Cancel()
		c.enforceWaitDelay(time.After(c.WaitDelay))
		return
	}
	c.cancelled <- nil // Wait reports the result
	limit, timeout := time.After(c.WaitDelay), c.env.conns.undoTimeout()
	if c.WaitDelay > 0 {
		timeout = c.WaitDelay
	}
	ctx, done := context.WithTimeout(c.env.ctx, timeout)
	defer done()
	_ = c.p.Terminate(ctx, 0)
	c.enforceWaitDelay(limit)
}

// killTimeout is how long a process killed after WaitDelay may take to end, and the
// server to report it.
const killTimeout = 10 * time.Second

// enforceWaitDelay waits until limit fires, which is when WaitDelay is over, or Wait
// returns. After WaitDelay it drops the output that is not copied yet and kills the process.
func (c *Cmd) enforceWaitDelay(limit <-chan time.Time) {
	if c.WaitDelay <= 0 {
		return
	}
	select {
	case <-limit:
	case <-c.over:
		return
	}
	close(c.delayed)
	c.abandonCopies()
	if c.ended() {
		return
	}
	ctx, done := context.WithTimeout(c.env.ctx, killTimeout)
	defer done()
	_ = c.p.Terminate(ctx, 0)
	select {
	case <-c.p.exitedCh:
	case <-ctx.Done():
		close(c.lost)
	}
}

// abandonCopies lets the process continue without the copying of its output.
func (c *Cmd) abandonCopies() {
	for _, r := range c.readers {
		if r != nil && !r.pipe {
			r.abandon()
		}
	}
}

// cause returns why the client ended the command, or nil. If stopped, the context did not end,
// and there is no cause. If ended, the process has exited, and cause waits for Cancel to return;
// otherwise it does not wait.
func (c *Cmd) cause(stopped, ended bool) error {
	if stopped {
		return nil
	}
	var failure error
	called := true
	if ended {
		failure, called = <-c.cancelled
	} else {
		select {
		case failure, called = <-c.cancelled:
		default: // Cancel has not returned
		}
	}
	switch {
	case !called, errors.Is(failure, os.ErrProcessDone):
		return nil
	case failure != nil:
		return fmt.Errorf("%w; Cancel failed: %w", context.Cause(c.ctx), failure)
	}
	return context.Cause(c.ctx)
}

// Wait waits until the process has exited, and Stdin, Stdout and Stderr are copied. It may be called
// only once. If the command's context is done, the client kills the process, which unblocks Wait; so
// does the end of the Environment. A Stdin, Stdout or Stderr that blocks delays Wait, at most by
// WaitDelay if that is not 0. An unread StdoutPipe does not delay Wait.
//
// If the process exited other than with code 0, the error is an *ExitError. If the client has lost
// the process, the error is a *LostError. Otherwise the error is nil, unless the context was done
// first (its cause), WaitDelay has passed (exec.ErrWaitDelay), or the copying failed.
func (c *Cmd) Wait() error {
	if c.Process == nil {
		return errNotStarted
	}
	if c.waited {
		return errors.New("client: Wait was already called")
	}
	c.waited = true
	defer close(c.over)
	c.awaitExit()
	stopped := c.stopCancel() // if true, the context has not ended, and cancel never runs
	exit, failure := c.p.outcome()
	c.Exit = exit
	copyErr := c.awaitCopies(stopped)
	if c.stopStdin != nil {
		c.stopStdin()
	}
	if _, late := c.p.outcome(); failure == nil && len(c.copies) > 0 {
		failure = late
	}
	cause := c.cause(stopped, exit != nil)
	switch {
	case exit == nil && failure == nil: // WaitDelay is over, and killing the process had no effect
		return &LostError{ProcessID: c.p.ID, Err: errors.Join(exec.ErrWaitDelay, cause)}
	case exit == nil:
		return failure
	case !exit.Success():
		return &ExitError{Exit: *exit, Cause: cause}
	case failure != nil:
		return failure
	case cause != nil:
		return cause
	}
	return copyErr
}

// pollInterval is how often the client asks the server whether a process has exited whose
// output has no reader.
const pollInterval = 250 * time.Millisecond

// awaitExit waits until the end of the process is known, or will stay unknown.
func (c *Cmd) awaitExit() {
	var poll <-chan time.Time
	if c.p.piped {
		ticker := time.NewTicker(pollInterval)
		defer ticker.Stop()
		poll = ticker.C
	}
	for last := uint64(0); ; {
		select {
		case <-c.p.exitedCh:
			return
		case <-c.lost:
			return
		case <-poll:
			last = c.p.pollExit(last)
		}
	}
}

// awaitCopies waits for the copying to end, until WaitDelay is over. stopped is the result
// of stopCancel.
func (c *Cmd) awaitCopies(stopped bool) (err error) {
	var delayed <-chan struct{}
	var limit <-chan time.Time
	switch {
	case c.WaitDelay <= 0:
	case stopped:
		limit = time.After(c.WaitDelay)
	default:
		delayed = c.delayed
	}
	copies := c.copies
	if _, ok := c.Stdin.(*os.File); !ok && c.stdinCopy != nil {
		copies = append(copies[:len(copies):len(copies)], c.stdinCopy)
	}
	for _, done := range copies {
		select {
		case e := <-done:
			if err == nil {
				err = e
			}
		case <-limit:
			c.abandonCopies()
			return exec.ErrWaitDelay
		case <-delayed:
			return exec.ErrWaitDelay
		}
	}
	return err
}

// ended reports whether the process has exited, or failed.
func (c *Cmd) ended() bool {
	select {
	case <-c.p.exitedCh:
		return true
	default:
		return false
	}
}
