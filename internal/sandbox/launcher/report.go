package launcher

import (
	"encoding/binary"
	"syscall"
)

// Begin is the message to the launcher through the control socket that its ids have been
// mapped.
const Begin = 'B'

// Signal begins a message to the launcher through the control socket that has it send the
// signal with the number of the second byte to the command's process group, or to the command
// if it shares the launcher's.
const Signal = 'K'

// The kinds of reports of a launcher. Each report is one packet.
const (
	ReportFailed  = 'F' // Stage, errno, and what was attempted
	ReportStarted = 'S' // with a pidfd of the command
	ReportEnded   = 'E' // the command's wait status
)

// Stage says which step failed.
type Stage byte

// The values of Stage.
const (
	StageConfine Stage = iota + 1 // the confinement
	StageDir                      // the working directory
	StageExec                     // the program
	StageMoved                    // the confinement: a file changed after the plan was made
)

// Failure says why a command did not start.
type Failure struct {
	Stage Stage
	What  string        // what was attempted
	Errno syscall.Errno // 0 if What says everything
}

func (f *Failure) Error() string {
	if f.Errno == 0 {
		return f.What
	}
	return f.What + ": " + f.Errno.Error()
}

// Unwrap returns the errno.
func (f *Failure) Unwrap() error {
	if f.Errno == 0 {
		return nil
	}
	return f.Errno
}

func (f *Failure) append(b []byte) []byte {
	b = append(b, ReportFailed, byte(f.Stage))
	b = binary.LittleEndian.AppendUint32(b, uint32(f.Errno))
	return append(b, f.What...)
}

// ParseFailure decodes a report of the kind ReportFailed.
func ParseFailure(b []byte) *Failure {
	if len(b) < 6 {
		return &Failure{Stage: StageConfine, What: "the launcher's report is too short"}
	}
	return &Failure{Stage(b[1]), string(b[6:]), syscall.Errno(binary.LittleEndian.Uint32(b[2:]))}
}

// ParseEnded decodes a report of the kind ReportEnded.
func ParseEnded(b []byte) (status uint32, ok bool) {
	if len(b) != 5 {
		return 0, false
	}
	return binary.LittleEndian.Uint32(b[1:]), true
}
