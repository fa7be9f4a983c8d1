package process

import "time"

// QuietTime changes how long streams must be quiet before a process closes that has left
// them to others.
func (o *Options) QuietTime(d time.Duration) { o.quietTime = d }
