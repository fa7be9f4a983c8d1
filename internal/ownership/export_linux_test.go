package ownership

// SweepAt makes an owner sweep when it remembers so many closed processes.
func SweepAt(w *Owner, n int) { w.firstSweep, w.sweepAt = n, n }
