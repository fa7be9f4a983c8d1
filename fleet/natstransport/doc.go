// Package natstransport carries the messages of the exec-server protocol over NATS, so that
// a machine that only dials out can be reached through a NATS server. It is separate from
// package transport because it depends on the NATS client library.
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
// INSTANCE is the Options.Instance of the machine. So if two machines briefly claim the same
// name, only one of them receives a client's frames.
//
// A machine only needs permission to subscribe to exec.open.NAME and exec.in.NAME.>, to
// publish to exec.out.NAME.>, and to answer requests. Messages with NATS headers are ignored:
// neither side sends any, but a NATS server may.
//
// # Guarantees
//
// Frames are numbered without gaps. A missing frame, a silent peer or a lost connection to
// NATS ends the Conn. Frames are not retransmitted, because the session of the protocol can be
// resumed over another connection. A writer sends at most the credit that the reader has
// granted, so a reader that stalls blocks its writer, and a connection never has more than one
// window in flight or in the memory of a NATS server.
package natstransport
