package process

import (
	"fmt"
	"syscall"

	"execserver/protocol"
)

// ending is what has been done to end a process, for its exit record.
type ending struct {
	cause    protocol.EndedBy // of who was first; empty: nobody
	begun    bool             // somebody ends the process, or what it has left
	asked    bool             // by SIGTERM, so that any way to exit is an answer
	signaled uint64           // the signals that the client has sent, a bit each
}

// note remembers who ends the process, unless somebody did before.
func (e *ending) note(cause protocol.EndedBy) {
	if e.cause == "" {
		e.cause = cause
	}
}

// noteSignal remembers a signal that the client has sent.
func (e *ending) noteSignal(sig syscall.Signal) {
	if sig > 0 && sig < 64 {
		e.signaled |= 1 << sig
	}
}

// by tells who ended a process that has ended with the status. SIGKILL leaves
// no choice: a process that exits with a code although it was killed was faster.
func (e *ending) by(status syscall.WaitStatus) protocol.EndedBy {
	sig := syscall.Signal(0)
	if status.Signaled() {
		sig = status.Signal()
	}
	switch {
	case e.cause != "" && (sig == syscall.SIGKILL || e.asked):
		return e.cause
	case sig > 0 && sig < 64 && e.signaled&(1<<sig) != 0:
		return protocol.EndedByClient
	}
	return protocol.EndedBySelf
}

// exitRecord makes the record of a leader that has been waited for. known is
// false when the system did not tell how it ended.
func exitRecord(status syscall.WaitStatus, known bool, usage *protocol.Rusage, e ending) protocol.ExitRecord {
	if !known {
		return protocol.ExitRecord{ExitCode: -1}
	}
	r := protocol.ExitRecord{ExitCode: status.ExitStatus(), EndedBy: e.by(status), Rusage: usage}
	if status.Signaled() {
		// What shells say, and clients expect.
		r.ExitCode = 128 + int(status.Signal())
		r.Signal = signalName(status.Signal())
		r.CoreDumped = status.CoreDump()
	}
	return r
}

// unnamedSignal names a signal by its number, as for those of real time.
func unnamedSignal(sig syscall.Signal) string { return fmt.Sprintf("SIG%d", int(sig)) }
