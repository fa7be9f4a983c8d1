//go:build core

package server

import (
	"execserver/internal/rpc"
	"execserver/protocol"
)

// screen refuses process/screen, which this program does not have.
func (c *connection) screen(r *rpc.Request, _ protocol.ScreenParams) { r.Fail(notImplemented(r)) }
