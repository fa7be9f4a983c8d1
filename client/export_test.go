package client

import "time"

// SetPingInterval sets the time between two pings of a connection.
func SetPingInterval(o *Options, d time.Duration) { o.pingInterval = d }
