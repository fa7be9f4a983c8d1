package server

import (
	"execserver/internal/rpc"
	"execserver/internal/session"
	"execserver/protocol"
)

// screen serves process/screen. It waits for the turn of its principal to interpret output.
func (c *connection) screen(r *rpc.Request, p protocol.ScreenParams) {
	c.look(r, p.SessionID, p.ProcessID, func(of *session.Session) {
		r.HeavyPool(func() {
			result, err := of.Screen(r.Context(), p, r.Reserve)
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
