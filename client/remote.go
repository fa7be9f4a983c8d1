package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"execserver/protocol"
	"execserver/rpc"
)

// The methods about processes, over a link. Only signals are not repeated when
// the connection breaks: two are not one.

func (l *link) info() *Info { return l.machine }

// start implements backend. A start that was repeated may find that the process
// exists: then it is ours, for its id is.
func (l *link) start(ctx context.Context, p *Process, s *startRequest) error {
	if err := wantUTF8(&s.Start); err != nil {
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
		_, err := l.tryOpening(ctx, protocol.MethodStart, s.Start, func(ctx context.Context, _ *rpc.Conn) {
			_ = l.terminate(ctx, p.ID, 0) // again, for disown's may have come before the start
		})
		switch {
		case errors.As(err, new(*errBroken)):
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

// disown ends a process whose start nobody waits for any more.
func (l *link) disown(p *Process) {
	l.env.run(func() {
		ctx, cancel := context.WithTimeout(l.env.ctx, l.undoTimeout())
		defer cancel()
		_ = l.terminate(ctx, p.ID, 0) // when that fails, the session's end will do it
	})
}

// startError finds out what does not exist when a process cannot be started
// because of that: servers do not all tell.
func (l *link) startError(ctx context.Context, cwd protocol.Path, dir string, err error) error {
	if !isNotExist(err) {
		return err
	}
	_, statErr := l.repeat(ctx, protocol.MethodGetMetadata, protocol.File{Path: cwd, FollowSymlinks: true})
	if statErr == nil {
		return notFound{err}
	}
	if isNotExist(statErr) {
		return fmt.Errorf("directory %s: %w", dir, err)
	}
	return err
}

func (l *link) read(ctx context.Context, id string, after, maxBytes uint64) (*readResult, error) {
	raw, err := l.repeat(ctx, protocol.MethodRead, protocol.Read{ProcessID: id, AfterSeq: &after, MaxBytes: &maxBytes})
	if err != nil {
		return nil, err
	}
	r, err := decodeRead(raw)
	if err != nil {
		return nil, fmt.Errorf("the answer to process/read cannot be understood: %w", err)
	}
	return r, nil
}

func (l *link) write(ctx context.Context, id string, data []byte, writeID string) (protocol.WriteStatus, error) {
	raw, err := l.repeat(ctx, protocol.MethodWrite, writeParams{id, writeID, data})
	if err != nil {
		return "", err
	}
	var result protocol.WriteResult
	if err := json.Unmarshal(raw, &result); err != nil {
		return "", fmt.Errorf("the answer to process/write cannot be understood: %w", err)
	}
	return result.Status, nil
}

func (l *link) closeStdin(ctx context.Context, id string) error {
	_, err := l.repeat(ctx, protocol.MethodCloseStdin, protocol.CloseStdin{ProcessID: id})
	return err
}

func (l *link) resize(ctx context.Context, id string, size Size) error {
	_, err := l.repeat(ctx, protocol.MethodResize, protocol.Resize{ProcessID: id, Size: size})
	return err
}

func (l *link) signal(ctx context.Context, s protocol.Signal) error {
	_, err := l.request(ctx, protocol.MethodSignal, s)
	return err
}

func (l *link) terminate(ctx context.Context, id string, grace time.Duration) error {
	p := protocol.Terminate{ProcessID: id}
	if grace > 0 {
		ms := uint64(min(max(1, grace.Milliseconds()), protocol.MaxGracefulMs))
		p.Mode, p.TimeoutMs = protocol.TerminateGraceful, &ms
	}
	_, err := l.repeat(ctx, protocol.MethodTerminate, p)
	return err
}

func (l *link) ack(id string, seq uint64) {
	l.notify(protocol.MethodAck, protocol.Ack{ProcessID: id, Seq: seq})
}
