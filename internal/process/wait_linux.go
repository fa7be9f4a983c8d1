package process

import (
	"bytes"
	"strconv"
	"sync/atomic"
	"syscall"

	"execserver/internal/sys"
	"execserver/protocol"
)

// wait waits for the leader without blocking a thread, and reaps it. locked calls reap with
// the locks held that keep the pid from being signalled meanwhile. reap returns false if
// the leader is still running.
func (c *child) wait(locked func(reap func() bool) bool) (syscall.WaitStatus, *protocol.Rusage, bool) {
	var r waitResult
	reap := c.waitFunc(&r)
	defer c.handle.thread.forget(c)
	if c.handle.pidfd == nil {
		poll(func() bool { return locked(reap) })
		return r.result()
	}
	defer c.handle.pidfd.Close()
	raw, err := c.handle.pidfd.SyscallConn()
	if err == nil {
		err = raw.Read(func(uintptr) bool { return locked(reap) })
	}
	if err != nil {
		poll(func() bool { return locked(reap) })
	}
	return r.result()
}

// maxRSS converts a child's peak memory from KiB to bytes, or returns 0 if it is unknown.
// Until its exec a child shares the memory of this program, and the kernel counts that, so
// a value no larger than this program's own peak is meaningless.
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
// kib: the kernel keeps a counter per processor, and the sum is inexact.
func withSlack(kib int64) int64 { return kib + kib/8 + 512 }

// peak caches the latest result of ownPeak, which only grows.
var peak atomic.Int64

// ownPeak returns the peak memory of this program in KiB.
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
