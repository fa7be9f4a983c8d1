package server

import (
	"errors"
	"time"

	"execserver/transport"
)

// What a client may take and send until it has initialized its connection.
const (
	greetingTimeout = 10 * time.Second
	maxGreeting     = 64 << 10
)

var errNoGreeting = errors.New("the client did not send initialize within " + greetingTimeout.String())

// awaitGreeting bounds what comes before the client has initialized the
// connection, on transports where anybody may be at the other end.
func (c *connection) awaitGreeting(stream transport.Conn) {
	if limited, ok := stream.(transport.Limited); ok && c.resumable {
		limited.LimitTotal(maxGreeting)
		c.early = limited
		c.greeting = time.AfterFunc(greetingTimeout, func() { c.end(errNoGreeting) })
	}
}

// greeted ends that. It runs on the reader.
func (c *connection) greeted() {
	if c.early != nil {
		c.greeting.Stop()
		c.early.LimitTotal(0)
	}
}
