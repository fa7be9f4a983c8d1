// Package local runs commands and accesses files on this machine, by a server inside this process
// that nothing else can reach. Start with [New].
//
// It is a package of its own so that package client does not depend on the server.
package local

import (
	"context"
	"log/slog"
	"sync"

	"execserver/client"
	"execserver/server"
	"execserver/transport"
)

// maxMessageBytes is the size of the largest message. It must hold the content of a file.
const maxMessageBytes = 1 << 30

// New returns an Environment whose commands are children of this process. Close kills them and
// their descendants. If this process exits without Close, they may live on. The session ends with
// the Environment: Detach and Keep return a *client.UnsupportedError.
//
// Starting a command with a Cmd.Sandbox fails: see [NewSandboxed].
//
// The options about connecting, recovery and credentials have no effect. The error is a
// *client.DialError.
func New(opts *client.Options) (*client.Environment, error) {
	return open(opts, nil)
}

// NewSandboxed is like New, but starts commands with a Cmd.Sandbox, on Linux, if this program
// calls [server.RunHelper] at the start of main. It takes longer than New, because it first
// determines which mechanisms this machine supports.
func NewSandboxed(opts *client.Options) (*client.Environment, error) {
	var log *slog.Logger
	if opts != nil {
		log = opts.Log
	}
	return open(opts, server.NewSandbox(server.SandboxOptions{Log: log}))
}

func open(opts *client.Options, sandbox *server.Sandbox) (*client.Environment, error) {
	if opts == nil {
		opts = new(client.Options)
	}
	srv := server.New(&server.Options{Log: opts.Log, Sandbox: sandbox, MaxMessageBytes: maxMessageBytes})
	ours, theirs := transport.Pipe(maxMessageBytes)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.ServeOnly(theirs) // the log says why it ended
	}()
	stop := sync.OnceFunc(func() {
		_ = srv.Shutdown(context.Background()) // returns when everything has ended
		<-served
		if sandbox != nil {
			sandbox.Close()
		}
	})
	return client.New(context.Background(), &conn{ours, stop}, opts)
}

// conn is a connection whose Close also ends its server.
type conn struct {
	transport.Conn
	stop func()
}

// AcceptBinary implements transport.BinaryCarrier.
func (c *conn) AcceptBinary() { c.Conn.(transport.BinaryCarrier).AcceptBinary() }

// Close implements transport.Conn. It returns when the server has ended.
func (c *conn) Close(reason transport.Reason) error {
	err := c.Conn.Close(reason)
	c.stop()
	return err
}
