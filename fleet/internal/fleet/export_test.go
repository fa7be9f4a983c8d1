package fleet

// LimitHeld bounds the memory of large messages, for tests that do not have that much.
func (g *Gateway) LimitHeld(bytes int64) { g.held = newQuota(bytes) }
