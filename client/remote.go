package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"execserver/internal/rpc"
	"execserver/protocol"
)

// The methods about processes. After a broken connection all are repeated except signals,
// because a second signal is not the same as one.

// start starts a process, which receives its events from then on. If ctx ends first,
// start terminates the process. A repeated start may find that the process exists: it is
// this one, because its id is unique.
func (l *link) start(ctx context.Context, p *Process, s *startRequest) error {
	if err := wantUTF8(&s.StartParams); err != nil {
		return &StartError{s.Argv[0], err}
	}
	s.Cwd = l.machine.uri(s.dir)
	if l.machine.Capabilities[capStartID] {
		s.StartID = &p.ID
	}
	epoch := l.currentEpoch()
	for repeated := false; ; repeated = true {
		if _, _, err := l.current(ctx); err != nil {
			return err
		}
		p.asked.Store(true)
		_, err := l.tryOpening(ctx, protocol.MethodStart, s.StartParams, func(ctx context.Context, _ *rpc.Conn) {
			// disown has asked for this already, but perhaps before the server knew the process.
			_ = l.terminate(ctx, p.ID, 0)
		})
		switch {
		case errors.As(err, new(*brokenError)):
			continue
		case repeated && errors.Is(err, protocol.ErrInvalidRequest) && l.exists(ctx, p.ID):
			err = nil
		case err != nil && ctx.Err() != nil:
			l.disown(p)
		}
		if err != nil {
			return l.startError(ctx, s.Cwd, s.dir, err)
		}
		p.markStarted(l.currentEpoch() != epoch)
		return nil
	}
}

// exists reports whether the server knows a process.
func (l *link) exists(ctx context.Context, id string) bool {
	_, err := l.read(ctx, id, 0, 1)
	return err == nil
}

// disown terminates a process whose start nobody waits for any more.
func (l *link) disown(p *Process) {
	l.env.run(func() {
		ctx, cancel := context.WithTimeout(l.env.ctx, l.undoTimeout())
		defer cancel()
		_ = l.terminate(ctx, p.ID, 0) // if it fails, the end of the session kills the process
	})
}

// startError finds out what does not exist when a process cannot start, because not all
// servers report it.
func (l *link) startError(ctx context.Context, cwd protocol.Path, dir string, err error) error {
	if !isNotExist(err) {
		return err
	}
	_, statErr := l.repeat(ctx, protocol.MethodGetMetadata, protocol.FileParams{Path: cwd, FollowSymlinks: true})
	if statErr == nil {
		return notFound{err}
	}
	if isNotExist(statErr) && !strings.Contains(err.Error(), "working directory ") { // the server says so itself
		return fmt.Errorf("directory %s: %w", dir, err)
	}
	return err
}

func (l *link) read(ctx context.Context, id string, after, maxBytes uint64) (*protocol.ReadResult, error) {
	r := new(protocol.ReadResult)
	err := l.query(ctx, protocol.MethodRead, protocol.ReadParams{ProcessID: id, AfterSeq: &after, MaxBytes: &maxBytes}, r)
	if err == nil {
		err = checkRead(r, after)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// checkRead checks the numbers in an answer to process/read, with which readers count on.
func checkRead(r *protocol.ReadResult, after uint64) error {
	last := after
	for _, c := range r.Chunks {
		if c.Seq <= last || c.Seq > farSeq {
			return &answerError{protocol.MethodRead, fmt.Errorf("output with the number %d comes after %d", c.Seq, last)}
		}
		last = c.Seq
	}
	if len(r.Chunks) > 0 && r.NextSeq <= last || r.NextSeq > farSeq+1 {
		return &answerError{protocol.MethodRead, fmt.Errorf("nextSeq is %d after output with the number %d", r.NextSeq, last)}
	}
	return nil
}

func (l *link) write(ctx context.Context, params protocol.WriteParams) (protocol.WriteStatus, error) {
	var result protocol.WriteResult
	err := l.query(ctx, protocol.MethodWrite, params, &result)
	return result.Status, err
}

func (l *link) closeStdin(ctx context.Context, id string) error {
	_, err := l.repeat(ctx, protocol.MethodCloseStdin, protocol.CloseStdinParams{ProcessID: id})
	return err
}

func (l *link) resize(ctx context.Context, id string, size Size) error {
	_, err := l.repeat(ctx, protocol.MethodResize, protocol.ResizeParams{ProcessID: id, Size: size})
	return err
}

func (l *link) signal(ctx context.Context, s protocol.SignalParams) error {
	_, err := l.request(ctx, protocol.MethodSignal, s)
	return err
}

func (l *link) terminate(ctx context.Context, id string, grace time.Duration) error {
	return l.terminateIn(ctx, nil, id, grace)
}

// terminateIn terminates a process of a session; nil is that of the connection.
func (l *link) terminateIn(ctx context.Context, session *string, id string, grace time.Duration) error {
	p := protocol.TerminateParams{ProcessID: id, SessionID: session}
	if grace > 0 {
		ms := uint64(min(max(1, grace.Milliseconds()), protocol.MaxGracefulMs))
		p.Mode, p.TimeoutMs = protocol.TerminateGraceful, &ms
	}
	_, err := l.repeat(ctx, protocol.MethodTerminate, p)
	return err
}

func (l *link) ack(id string, seq uint64) {
	if !l.isObserving() {
		l.notify(protocol.MethodAck, protocol.AckParams{ProcessID: id, Seq: seq})
	}
}
