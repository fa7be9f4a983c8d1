package process

import (
	"bytes"
	"strconv"
	"sync/atomic"

	"execserver/internal/sys"
)

// maxRSS converts a child's peak memory from the kernel's KiB to bytes, or returns 0 if
// it is unknown. Until it executes its program, a child shares the memory of this
// program, and the kernel counts that. So a value no larger than this program's own peak
// says nothing about the child.
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

// withSlack returns the largest value that the kernel may report for a program that uses
// kib: each processor counts for itself, and the sum is inexact.
func withSlack(kib int64) int64 { return kib + kib/8 + 512 }

// peak is the latest result of ownPeak. It only grows, and for most children it saves
// reading the current one.
var peak atomic.Int64

// ownPeak returns the most memory that this program has used, in KiB.
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
