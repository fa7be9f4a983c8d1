package client

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"execserver/protocol"
)

// remoteProcesses makes the requests about processes. After a broken connection it repeats
// all except signals, because a second signal is not the same as one.
type remoteProcesses struct{ conns *connManager }

// exists reports whether the server knows a process.
func (c remoteProcesses) exists(ctx context.Context, id string) bool {
	_, err := c.read(ctx, id, 0, 1)
	return err == nil
}

// startError finds out what does not exist when a process cannot start, because not all
// servers report it.
func (c remoteProcesses) startError(ctx context.Context, cwd protocol.Path, dir string, err error) error {
	if !isNotExist(err) {
		return err
	}
	_, statErr := c.conns.repeat(ctx, protocol.MethodGetMetadata, protocol.FileParams{Path: cwd, FollowSymlinks: true})
	if statErr == nil {
		return notFound{err}
	}
	if isNotExist(statErr) && !strings.Contains(err.Error(), "working directory ") { // the server says so itself
		return fmt.Errorf("directory %s: %w", dir, err)
	}
	return err
}

func (c remoteProcesses) read(ctx context.Context, id string, after, maxBytes uint64) (*protocol.ReadResult, error) {
	r := new(protocol.ReadResult)
	err := c.conns.query(ctx, protocol.MethodRead, protocol.ReadParams{ProcessID: id, AfterSeq: &after, MaxBytes: &maxBytes}, r)
	if err == nil {
		err = checkRead(r, after)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// checkRead checks the numbers in an answer to process/read, from which readers continue.
func checkRead(r *protocol.ReadResult, after uint64) error {
	last := after
	for _, c := range r.Chunks {
		if c.Seq <= last || c.Seq > maxSeq {
			return &answerError{protocol.MethodRead, fmt.Errorf("output with the number %d comes after %d", c.Seq, last)}
		}
		last = c.Seq
	}
	if len(r.Chunks) > 0 && r.NextSeq <= last || r.NextSeq > maxSeq+1 {
		return &answerError{protocol.MethodRead, fmt.Errorf("nextSeq is %d after output with the number %d", r.NextSeq, last)}
	}
	return nil
}

func (c remoteProcesses) write(ctx context.Context, params protocol.WriteParams) (protocol.WriteStatus, error) {
	var result protocol.WriteResult
	err := c.conns.query(ctx, protocol.MethodWrite, params, &result)
	return result.Status, err
}

func (c remoteProcesses) closeStdin(ctx context.Context, id string) error {
	_, err := c.conns.repeat(ctx, protocol.MethodCloseStdin, protocol.CloseStdinParams{ProcessID: id})
	return err
}

func (c remoteProcesses) resize(ctx context.Context, id string, size Size) error {
	_, err := c.conns.repeat(ctx, protocol.MethodResize, protocol.ResizeParams{ProcessID: id, Size: size})
	return err
}

func (c remoteProcesses) signal(ctx context.Context, s protocol.SignalParams) error {
	_, err := c.conns.request(ctx, protocol.MethodSignal, s)
	return err
}

func (c remoteProcesses) terminate(ctx context.Context, id string, grace time.Duration) error {
	return c.terminateIn(ctx, nil, id, grace)
}

// terminateIn terminates a process of a session; nil is that of the connection.
func (c remoteProcesses) terminateIn(ctx context.Context, session *string, id string, grace time.Duration) error {
	p := protocol.TerminateParams{ProcessID: id, SessionID: session}
	if grace > 0 {
		ms := uint64(min(max(1, grace.Milliseconds()), protocol.MaxGracefulMs))
		p.Mode, p.TimeoutMs = protocol.TerminateGraceful, &ms
	}
	_, err := c.conns.repeat(ctx, protocol.MethodTerminate, p)
	return err
}

func (c remoteProcesses) ack(id string, seq uint64) {
	if !c.conns.isObserving() {
		c.conns.notify(protocol.MethodAck, protocol.AckParams{ProcessID: id, Seq: seq})
	}
}

// list lists the processes of the session, or those of all sessions.
func (c remoteProcesses) list(ctx context.Context, all bool) (*protocol.ListResult, error) {
	r := new(protocol.ListResult)
	var params any
	if all {
		params = protocol.ListParams{All: true}
	}
	raw, err := c.conns.repeat(ctx, protocol.MethodList, params)
	if err == nil {
		err = json.Unmarshal(raw, r)
	}
	return r, err
}
