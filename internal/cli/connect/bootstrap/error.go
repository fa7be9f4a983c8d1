package bootstrap

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// ErrorKind is the reason why the other machine cannot start a program.
type ErrorKind string

// The kinds of errors. The values of most come from the script.
const (
	NoHome   ErrorKind = "home"    // the user has no home directory
	Tools    ErrorKind = "tools"   // commands are missing; Text has their names
	Unsafe   ErrorKind = "unsafe"  // another user could replace the program
	Store    ErrorKind = "store"   // the program cannot be written; Text has the reason
	Corrupt  ErrorKind = "corrupt" // the program arrived damaged
	NoExec   ErrorKind = "noexec"  // programs cannot be executed in the directory, which is Text
	Exec     ErrorKind = "exec"    // the program does not run; Text has its output
	Version  ErrorKind = "version" // the program is of another version, which is Text
	Machine  ErrorKind = "machine" // no program for the machine; Text is from uname
	Noise    ErrorKind = "noise"   // unexpected output of the shell
	Mistaken ErrorKind = "program" // the name of a local program has the wrong kind of machine
)

// Error is the reason why the other machine does not start a program.
type Error struct {
	Kind ErrorKind
	Text string // untrusted text from the other machine
	For  string // the file that was sent, if any
}

// Error implements error.
func (e *Error) Error() string {
	switch e.Kind {
	case NoHome:
		return "there is no HOME on the other machine to keep the program in"
	case Tools:
		return "the other machine lacks tools to receive the program: " + e.Text
	case Unsafe:
		return "the other machine's directory for the program is not safe: " + e.Text
	case Store:
		return "cannot store the program on the other machine: " + e.Text
	case Corrupt:
		return "the program was corrupted on its way to the other machine: " + e.Text
	case NoExec:
		return fmt.Sprintf("the other machine does not execute programs in %s", e.Text)
	case Exec:
		return fmt.Sprintf("%s does not run on the other machine: %s", e.For, e.Text)
	case Version:
		return fmt.Sprintf("%s has another version than this program: %s", e.For, e.Text)
	case Machine:
		return "there is no program for the other machine, which is " + e.Text
	case Noise:
		return "unexpected output of the shell on the other machine: " + e.Text
	case Mistaken:
		return e.Text
	}
	return fmt.Sprintf("the other machine does not start the program: %s %s", e.Kind, e.Text)
}

// EndedError means that the command ended before it started the program.
type EndedError struct {
	Code int // its exit code; negative after a signal
	Err  error
	Said string // its last line of output, untrusted
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

// Unwrap returns the error of the command.
func (e *EndedError) Unwrap() error { return e.Err }

// maxText bounds a quotation in an error.
const maxText = 300

func shorten(text string) string {
	if len(text) > maxText {
		return text[:maxText] + "…"
	}
	return text
}

// isBrokenPipe reports whether a write failed because the command has stopped reading.
func isBrokenPipe(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, fs.ErrClosed)
}
