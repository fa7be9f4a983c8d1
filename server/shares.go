package server

import (
	"execserver/internal/share"
	"execserver/protocol"
)

// pools count what the principals of a server have at the same time, apart from what their
// sessions have. Nobody but a server's only principal can take all of something.
type pools struct {
	connections *share.Pool // with a session, or that asked for none
	forwards    *share.Pool // forwarded connections
	operations  *share.Pool // file operations under way
	handles     *share.Pool // open files of principals that have shares
}

func newPools(o *Options) pools {
	return pools{
		connections: share.NewPool(o.MaxConnections),
		forwards:    share.NewPool(min(maxAllForwards, quarterOfDescriptors())),
		operations:  share.NewPool(maxFileOperations),
		handles:     share.NewPool(quarterOfDescriptors() / 2),
	}
}

// takeForward counts one more forwarded connection.
func (c *connection) takeForward() error {
	if c.forwards.Add(1) > maxForwards {
		c.forwards.Add(-1)
		return protocol.Errorf(protocol.CodeInvalidRequest,
			"this connection has its limit of %d forwarded connections; close one", maxForwards)
	}
	if refusal := c.server.pools.forwards.Take(c.principal.Share()); refusal != nil {
		c.forwards.Add(-1)
		return protocol.Errorf(protocol.CodeInvalidRequest, "%s; close one", refusal.Of("has", "forwarded connections"))
	}
	return nil
}

func (c *connection) giveForward() {
	c.forwards.Add(-1)
	c.server.pools.forwards.Give(c.principal.Share())
}

// takeOperation counts one more file operation.
func (c *connection) takeOperation() error {
	refusal := c.server.pools.operations.Take(c.principal.Share())
	switch {
	case refusal == nil:
		return nil
	case refusal.Greedy():
		return protocol.Errorf(protocol.CodeInternal,
			"%s; perhaps a file system does not answer", refusal.Of("has", "file operations under way"))
	}
	return protocol.Errorf(protocol.CodeInternal,
		"the server has its limit of %d file operations under way; perhaps a file system does not answer", refusal.Limit)
}

func (c *connection) giveOperation() { c.server.pools.operations.Give(c.principal.Share()) }

// takeHandle counts one more open file of a principal that has a share.
func (c *connection) takeHandle() (leave func(), err error) {
	of := c.principal.Share()
	if of == share.Everybody {
		return func() {}, nil
	}
	handles := c.server.pools.handles
	if refusal := handles.Take(of); refusal != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidRequest, "%s; close one", refusal.Of("has", "file handles"))
	}
	return func() { handles.Give(of) }, nil
}
