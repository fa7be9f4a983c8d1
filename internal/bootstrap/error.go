package bootstrap

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// ErrorKind says what kept the other machine from starting a program.
type ErrorKind string

// The kinds of errors. Those that the script reports have its words.
const (
	NoHome   ErrorKind = "home"    // it knows no directory of the user
	Tools    ErrorKind = "tools"   // commands are missing; Text has their names
	Unsafe   ErrorKind = "unsafe"  // somebody else could put a program there
	Store    ErrorKind = "store"   // the program cannot be written; Text has the reason
	Corrupt  ErrorKind = "corrupt" // another program than the one that was sent has arrived
	NoExec   ErrorKind = "noexec"  // programs cannot be executed in the directory, which is Text
	Exec     ErrorKind = "exec"    // the program does not run; Text has what was said
	Version  ErrorKind = "version" // the program is of another version, which is Text
	Machine  ErrorKind = "machine" // there is no program for the machine, which Text has as uname does
	Noise    ErrorKind = "noise"   // the shell there says other things than expected
	Mistaken ErrorKind = "program" // a program here is for another kind of machine than its name says
)

// Error says why the other machine does not start a program.
type Error struct {
	Kind ErrorKind
	Text string // comes from the other machine, and may be anything
	For  string // the file that was sent, if any
}

// Error implements error.
func (e *Error) Error() string {
	switch e.Kind {
	case NoHome:
		return "there is no HOME on the other machine to keep the program in"
	case Tools:
		return "the other machine lacks what it takes to receive the program: " + e.Text
	case Unsafe:
		return "the other machine's directory for the program is not safe: " + e.Text
	case Store:
		return "cannot store the program on the other machine: " + e.Text
	case Corrupt:
		return "the program has changed on its way to the other machine: " + e.Text
	case NoExec:
		return fmt.Sprintf("the other machine executes no programs in %s", e.Text)
	case Exec:
		return fmt.Sprintf("%s does not run on the other machine: %s", e.For, e.Text)
	case Version:
		return fmt.Sprintf("%s is another version than this program: %s", e.For, e.Text)
	case Machine:
		return "there is no program for the other machine, which is " + e.Text
	case Noise:
		return "the shell of the other machine says something else than expected: " + e.Text
	case Mistaken:
		return e.Text
	}
	return fmt.Sprintf("the other machine does not start the program: %s %s", e.Kind, e.Text)
}

// EndedError says that the command that leads to the other machine ended before the program
// was started there.
type EndedError struct {
	Code int // its exit code; negative after a signal
	Err  error
	Said string // its last line of output, which may be anything
}

// Error implements error.
func (e *EndedError) Error() string {
	text := "the command ended before it started a server"
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	if e.Said != "" {
		text += "; it said: " + e.Said
	}
	return text
}

// Unwrap returns how the command ended.
func (e *EndedError) Unwrap() error { return e.Err }

// maxText bounds what an error quotes.
const maxText = 300

func shorten(text string) string {
	if len(text) > maxText {
		return text[:maxText] + "…"
	}
	return text
}

// isBrokenPipe reports whether an error of a write says that the command does not read any
// more.
func isBrokenPipe(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, fs.ErrClosed)
}
