package client

import "time"

// SetPingInterval sets the time between two pings of a connection.
func SetPingInterval(o *Options, d time.Duration) { o.pingInterval = d }

// SetCleanupTime sets the time that an interrupted copy has to remove what is not whole.
func SetCleanupTime(o *Options, d time.Duration) { o.cleanupTime = d }
