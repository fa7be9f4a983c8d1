package process

import (
	"fmt"
	"syscall"

	"execserver/protocol"
)

// ending records what was done to end a process, for its exit record.
type ending struct {
	cause    protocol.EndedBy // the first to end it; "" for none
	begun    bool             // the process or its descendants are being ended
	asked    bool             // with SIGTERM, so any exit may be the response
	signaled uint64           // the signals that the client has sent, one bit each
}

// note records the cause, unless there is one already.
func (e *ending) note(cause protocol.EndedBy) {
	if e.cause == "" {
		e.cause = cause
	}
}

// noteSignal records a signal that the client has sent.
func (e *ending) noteSignal(sig syscall.Signal) {
	if sig > 0 && sig < 64 {
		e.signaled |= 1 << sig
	}
}

// by returns the cause of an end with the status. A process that exits with a code although
// it was killed had ended itself before the signal.
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

// exitRecord returns the record of a leader that has been reaped. known is false if the
// system did not report its status.
func exitRecord(status syscall.WaitStatus, known bool, usage *protocol.Rusage, e ending) protocol.ExitRecord {
	if !known {
		return protocol.ExitRecord{ExitCode: -1}
	}
	r := protocol.ExitRecord{ExitCode: status.ExitStatus(), EndedBy: e.by(status), Rusage: usage}
	if status.Signaled() {
		// The exit code that shells report and clients expect.
		r.ExitCode = 128 + int(status.Signal())
		r.Signal = signalName(status.Signal())
		r.CoreDumped = status.CoreDump()
	}
	return r
}

// unnamedSignal names a signal by its number, as for those of real time.
func unnamedSignal(sig syscall.Signal) string { return fmt.Sprintf("SIG%d", int(sig)) }
