// Package natstransport carries the messages of the exec-server protocol over NATS, so that
// a machine that only dials out can be reached through a NATS server. It is a package of
// its own because it needs the client library of NATS, which package transport does without.
//
// The machine calls [Listen] with its name and then [Listener.Accept], as with a listener
// of package net. The other side makes a [Dialer] and calls [Dialer.Dial] with the name.
// Both get a [Conn], which is a transport.Conn.
//
// # Subjects
//
// A name NAME is one token of a subject. The package uses three subjects, below a prefix:
//
//	exec.open.NAME                      requests to open a connection
//	exec.in.NAME.INSTANCE.DIALER.ID     frames to the machine
//	exec.out.NAME.DIALER.ID             frames from the machine
//
// INSTANCE is the Options.Instance of the machine. So two machines that claim one name for
// a moment never both get what a client sends.
//
// A machine needs no permission but to subscribe to exec.open.NAME and exec.in.NAME.>, and
// to publish to exec.out.NAME.> and to answer requests. Messages with headers of NATS are
// ignored: neither side sends any, and what a NATS server itself sends has some.
//
// # What the connection promises
//
// Frames carry numbers without gaps. A frame that is missing, a peer without a sign of life
// and a lost connection to NATS end the Conn: there are no repetitions, because the session
// of the protocol above can be resumed over another connection. A writer sends no more than
// the reader has room for, so a reader that stalls blocks its writer, and no more than one
// window of a connection is ever on its way or waits in the memory of a NATS server.
package natstransport
