// Package local makes an Environment of package client from this process: a server inside
// it, which nobody else can reach. Start with [New].
//
// It is a package of its own so that package client does not depend on the server.
package local

import (
	"context"
	"sync"

	"execserver/client"
	"execserver/server"
	"execserver/transport"
)

// maxMessageBytes is the size of the largest message. It must hold the content of a file.
const maxMessageBytes = 1 << 30

// New returns an Environment whose machine is this process. Its commands are children of
// this process, under the same rules as a server's. Close of the Environment ends them and
// their descendants; if this process ends without it, they may live on. opts are those of
// client.New. The error is a *client.DialError.
func New(opts *client.Options) (*client.Environment, error) {
	if opts == nil {
		opts = new(client.Options)
	}
	srv := server.New(&server.Options{Log: opts.Log, MaxMessageBytes: maxMessageBytes})
	ours, theirs := transport.Pipe(maxMessageBytes)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.ServeOnly(theirs) // the log says why it ended
	}()
	stop := sync.OnceFunc(func() {
		_ = srv.Shutdown(context.Background()) // returns when everything has ended
		<-served
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
