package process

import (
	"bytes"
	"strconv"
	"sync/atomic"

	"execserver/internal/sys"
)

// maxRSS makes bytes of what the kernel tells in KiB. It tells too much of a
// child that used less than this program at the time of the start, whose memory
// it shared until it was executed; then how much it was is not known, and 0.
func maxRSS(kib int64) int64 {
	if kib <= withSlack(peak.Load()) {
		return 0
	}
	now := ownPeak()
	peak.Store(now)
	if kib <= withSlack(now) {
		return 0
	}
	return kib << 10
}

// withSlack is what the kernel may tell of a program that has kib: every
// processor counts for itself, and what is told is not exact.
func withSlack(kib int64) int64 { return kib + kib/8 + 512 }

// peak is what ownPeak has told last. It only grows, and most children make no
// other look necessary.
var peak atomic.Int64

// ownPeak is the most memory that this program has had, in KiB.
func ownPeak() int64 {
	status, err := sys.ReadFile("/proc/self/status")
	if err != nil {
		return 1 << 62
	}
	_, rest, _ := bytes.Cut(status, []byte("VmHWM:"))
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return 1 << 62
	}
	kib, err := strconv.ParseInt(string(fields[0]), 10, 64)
	if err != nil {
		return 1 << 62
	}
	return kib
}
