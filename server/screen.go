//go:build !core

package server

import (
	"execserver/internal/rpc"
	"execserver/protocol"
)

// screen serves process/screen. It waits for the turn of its principal to interpret output.
func (c *connection) screen(r *rpc.Request, p protocol.ScreenParams) {
	r.Queue(p.ProcessID, rpc.Urgent, func(*rpc.Lane) {
		r.HeavyPool(func() {
			result, err := c.session.Screen(r.Context(), p, r.Reserve)
			switch {
			case r.Context().Err() != nil:
				r.Drop()
			case err != nil:
				r.Fail(err)
			default:
				r.Reply(result)
			}
		})
	})
}
