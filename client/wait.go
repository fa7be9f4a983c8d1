package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// cancel runs when the command's context has ended.
func (c *Cmd) cancel() {
	defer close(c.cancelled)
	if c.ended() {
		return
	}
	if c.Cancel != nil {
		c.cancelled <- c.Cancel()
		c.delay(time.After(c.WaitDelay))
		return
	}
	c.cancelled <- nil // Wait tells how it went
	limit, timeout := time.After(c.WaitDelay), max(terminateTimeout, c.env.opts.RecoveryTimeout)
	if c.WaitDelay > 0 {
		timeout = c.WaitDelay
	}
	ctx, done := context.WithTimeout(c.env.ctx, timeout)
	defer done()
	_ = c.p.Terminate(ctx, 0)
	c.delay(limit)
}

// killTimeout is how long a process may take to end that was killed because
// WaitDelay is over, and how long the server may take to tell so.
const killTimeout = 10 * time.Second

// delay waits until WaitDelay is over, unless Wait is before. Then it drops the
// output that is not copied yet and kills the process.
func (c *Cmd) delay(limit <-chan time.Time) {
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

// abandonCopies lets the process go on without what copies its output.
func (c *Cmd) abandonCopies() {
	for _, q := range c.p.queue {
		if q != nil && !q.pipe {
			q.abandon()
		}
	}
}

// cause is why the command was ended from here, nil if it was not. Who asks has
// stopped its context from ending it, if it was not too late; an end that is
// known may wait for Cancel to return.
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

// Wait waits until the process has exited, and Stdin, Stdout and Stderr are
// copied. The error is nil for exit code 0, an *ExitError for any other end,
// and an *ExitMissingError when nobody told how it ended, or output that is
// copied was lost. Otherwise it is exec.ErrWaitDelay, or what the copying
// failed with.
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
	stopped := c.stopCancel()
	exit, failure := c.p.outcome()
	c.Exit = exit
	copyErr := c.awaitStreams(stopped)
	if c.stopStdin != nil {
		c.stopStdin()
	}
	if _, late := c.p.outcome(); failure == nil && len(c.copies) > 0 {
		failure = late
	}
	cause := c.cause(stopped, exit != nil)
	switch {
	case exit == nil && failure == nil: // WaitDelay is over, and the process was killed in vain
		return &ExitMissingError{ProcessID: c.p.ID, Err: errors.Join(exec.ErrWaitDelay, cause)}
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

// askPause is how often the server is asked whether a process has exited whose
// output nobody takes.
const askPause = 250 * time.Millisecond

// awaitExit waits until it is known how the process ended, or will not be.
func (c *Cmd) awaitExit() {
	var ask <-chan time.Time
	if c.hasPipe() {
		ticker := time.NewTicker(askPause)
		defer ticker.Stop()
		ask = ticker.C
	}
	for last := uint64(0); ; {
		select {
		case <-c.p.exitedCh:
			return
		case <-c.lost:
			return
		case <-ask:
			last = c.p.unstick(last)
		}
	}
}

func (c *Cmd) hasPipe() bool {
	for _, q := range c.p.queue {
		if q != nil && q.pipe {
			return true
		}
	}
	return false
}

// awaitStreams waits for the copying to end; stopped says that the context has
// not ended the command.
func (c *Cmd) awaitStreams(stopped bool) (err error) {
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

// outcome is what is known by now.
func (p *Process) outcome() (*Exit, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit, p.failure
}
