// Package peer finds the process at the other end of a connection from this machine.
//
// A TCP connection says nothing about the process that made it. On Linux the kernel knows
// the peer's socket if it is in the same network namespace: [FindTCP] returns its owner,
// and [Holders.Namespace] the process namespace of a process that holds it.
// [Socket.MadeElsewhere] needs no search. A unix socket carries the identity of the
// process that connected: [UnixNamespace].
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
