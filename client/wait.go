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
	select {
	case <-c.p.exitedCh:
		return
	default:
	}
	if c.Cancel != nil {
		c.cancelled <- c.Cancel()
		return
	}
	c.cancelled <- nil // Wait tells how it went
	ctx, done := context.WithTimeout(c.env.ctx, max(terminateTimeout, c.env.opts.RecoveryTimeout))
	defer done()
	_ = c.p.Terminate(ctx, 0)
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
	limit := c.awaitExit()
	stopped := c.stopCancel()
	exit, failure := c.p.outcome()
	c.Exit = exit
	copyErr := c.awaitStreams(limit)
	if c.stopStdin != nil {
		c.stopStdin()
	}
	if _, late := c.p.outcome(); failure == nil && len(c.copies) > 0 {
		failure = late
	}
	cause := c.cause(stopped, exit != nil)
	switch {
	case exit == nil && failure == nil: // WaitDelay is over
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

// awaitExit waits until it is known how the process ended, and returns what
// expires when WaitDelay is over; nil when it has not begun.
func (c *Cmd) awaitExit() <-chan time.Time {
	var limit <-chan time.Time
	var ended <-chan struct{}
	if c.WaitDelay > 0 {
		ended = c.ctx.Done()
	}
	for {
		select {
		case <-c.p.exitedCh:
			return limit
		case <-ended:
			limit, ended = time.After(c.WaitDelay), nil
		case <-limit:
			expired := make(chan time.Time)
			close(expired)
			return expired
		}
	}
}

// awaitStreams waits for the copying to end.
func (c *Cmd) awaitStreams(limit <-chan time.Time) (err error) {
	if limit == nil && c.WaitDelay > 0 {
		limit = time.After(c.WaitDelay)
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
			for _, q := range c.p.queue {
				if q != nil {
					q.abandon()
				}
			}
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
