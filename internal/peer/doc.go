// Package peer finds the process at the other end of a connection from this machine.
//
// A TCP connection says nothing about the process that made it. On Linux the kernel knows
// the peer's socket if it is in the same network namespace: [FindTCP] returns its owner. A
// unix socket carries the identity of the process that connected. A [Judge] decides for
// every listener whether the process at the other end is confined, and [CheckServer] for
// every client whether the one that has accepted its connection may have its secrets.
//
// [IsLocal] tells of a connection that is yet to be made whether it ends on this machine.
package peer

import "errors"

// Socket is the peer's end of a TCP connection within this machine.
type Socket struct {
	// UID is the owner's, as this program's user namespace numbers it. It means nothing
	// if the socket is orphaned.
	UID int
	// Inode identifies the socket. It is 0 when no process holds the socket any more; the
	// kernel then reports root as the owner, whoever made it.
	Inode uint64
	// Group is the id of the control group in which the socket was made. It is 0 if the
	// kernel does not report it.
	Group uint64
}

// Orphaned reports whether the peer has closed its socket, or has exited.
func (s Socket) Orphaned() bool { return s.Inode == 0 }

// ErrNotFound says that no socket in this network namespace is the other end of the
// connection: the peer is on another machine, in another network namespace, or gone.
var ErrNotFound = errors.New("no socket of this machine is at the other end of the connection")

// ErrUnsupported says that this system does not report who connects.
var ErrUnsupported = errors.New("this platform does not tell who connects over TCP, or where a connection ends")

// Remedy is a part of the text of every ConfinedError and UnknownError: what the operator can
// do.
const Remedy = "allow confined peers"

const remedy = "; connect from outside, or have the operator of the program that listens " + Remedy

// ConfinedError says that a peer is confined.
type ConfinedError struct{ how string }

func (e *ConfinedError) Error() string {
	return "this connection comes from a confined process, " + e.how +
		", which could get out through the program that listens" + remedy
}

// UnknownError says that nobody can tell whether a peer is confined.
type UnknownError struct{ why string }

func (e *UnknownError) Error() string {
	return "it cannot be found out whether this connection comes from a confined process: " + e.why + remedy
}

// IsAboutConfinement reports whether an error is a ConfinedError or an UnknownError.
func IsAboutConfinement(err error) bool {
	return errors.As(err, new(*ConfinedError)) || errors.As(err, new(*UnknownError))
}

// ServerError says that a process has accepted a connection that may not have the secrets of
// this program, unless its user is named ([CheckServer]).
type ServerError struct {
	User string // its name, or its number
	why  string
}

func (e *ServerError) Error() string {
	return "refusing to send a secret in clear to " + e.why
}
