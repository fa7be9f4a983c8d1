// Package mcptransport connects the official Go SDK of the Model Context Protocol to an
// MCP server on another machine, over the stdin and stdout of a command of package
// client. Start with [Transport].
//
// It is a package of its own so that package client does not depend on the SDK.
package mcptransport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"execserver/client"
)

// DefaultStopTimeout is how long each step of ending the MCP server may take by default.
const DefaultStopTimeout = 5 * time.Second

// killTimeout is how long it may take to learn that a killed MCP server has exited, however
// little time it had to exit by itself.
const killTimeout = 10 * time.Second

// Transport is an mcp.Transport to an MCP server that runs as a client.Cmd. Connect, which may be
// called once, starts the command and exchanges JSON-RPC messages with it, one on each line.
type Transport struct {
	// Command is the MCP server, not started. Stdin and Stdout must not be set; Stderr is
	// the MCP server's log. The command ends with the context given to
	// Environment.Command, not with that of Connect.
	Command *client.Cmd

	// StopTimeout is how long the MCP server has to exit after its stdin is closed, and
	// again after SIGTERM, before it is killed. 0 means DefaultStopTimeout. The transport
	// skips a step for which the server lacks the capability processCloseStdin or
	// processSignals.
	StopTimeout time.Duration
}

// Connect implements mcp.Transport. Its error is that of Cmd.Start.
func (t *Transport) Connect(ctx context.Context) (mcp.Connection, error) {
	if _, err := t.Command.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := t.Command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := t.Command.Start(); err != nil {
		return nil, fmt.Errorf("start MCP server: %w", err)
	}
	timeout := t.StopTimeout
	if timeout <= 0 {
		timeout = DefaultStopTimeout
	}
	s := &server{command: t.Command, stdout: stdout, timeout: timeout}
	s.stop = sync.OnceValue(s.end)
	lines, err := (&mcp.IOTransport{Reader: io.NopCloser(stdout), Writer: s}).Connect(ctx)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &connection{Connection: lines, server: s, writing: make(chan struct{}, 1)}, nil
}

// connection is an mcp.Connection whose Write ends with its context, even while the MCP
// server does not read.
type connection struct {
	mcp.Connection
	server  *server
	writing chan struct{} // holds one element while a message is written
}

// Write implements mcp.Connection.
func (c *connection) Write(ctx context.Context, message jsonrpc.Message) error {
	select {
	case c.writing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-c.writing }()
	c.server.ctx = ctx
	return c.Connection.Write(ctx, message)
}

// server is a running MCP server. Closing it ends it.
type server struct {
	command *client.Cmd
	stdout  io.Closer
	timeout time.Duration
	stop    func() error

	// Used by the writer alone.
	ctx    context.Context // of the message
	broken error           // a message was cut off, so no other can follow
}

// Write implements io.Writer.
func (s *server) Write(b []byte) (int, error) {
	if s.broken != nil {
		return 0, s.broken
	}
	if err := s.command.Write(s.ctx, b); err != nil {
		s.broken = fmt.Errorf("the message before this one was not written whole: %w", err)
		return 0, err
	}
	return len(b), nil
}

// Close implements io.Closer. It returns when the MCP server has exited.
func (s *server) Close() error { return s.stop() }

// end ends the MCP server as its protocol demands: it closes the input, then sends
// SIGTERM, then SIGKILL. It ignores the exit status.
func (s *server) end() error {
	exited := make(chan error, 1)
	go func() { exited <- s.command.Wait() }() // ends with the MCP server or the Environment
	defer s.stdout.Close()
	for _, step := range []struct {
		ask     func(context.Context) error
		timeout time.Duration
	}{
		{s.command.CloseStdin, s.timeout},
		{func(ctx context.Context) error { return s.command.Terminate(ctx, s.timeout) }, s.timeout},
		{func(ctx context.Context) error { return s.command.Terminate(ctx, 0) }, max(s.timeout, killTimeout)},
	} {
		if done, err := try(step.ask, step.timeout, exited); done {
			return err
		}
	}
	return errors.New("the MCP server does not end")
}

// try takes one step, and waits for the MCP server to exit.
func try(ask func(context.Context) error, timeout time.Duration, exited <-chan error) (done bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if ask(ctx) != nil { // the step is not supported; its exit says if it was unnecessary
		cancel()
	}
	select {
	case err = <-exited:
		if errors.As(err, new(*client.ExitError)) {
			err = nil
		}
		return true, err
	case <-ctx.Done():
		return false, nil
	}
}
