// Package stream carries one byte stream over links that break and are replaced. A link is any
// reliable byte stream, such as the standard streams of an ssh. The package knows neither what the
// bytes mean nor how links are made.
//
// [Dial] begins a stream. Its [Conn] replaces a broken link for as long as the other end keeps the
// stream. [Server.Serve] accepts links at that end. Both ends have the same Conn:
//
//	link, handshake      handshake.go: what the ends say before the first frame
//	link, frames         link.go: bytes, acknowledgements, pings; when a link is dead
//	stream               conn.go: what is retained, delivered, and finished
//
// The bytes of each direction are numbered. An end retains what it sent until the other end
// acknowledges it, and an end acknowledges what its program has read. So the unacknowledged bytes
// of a direction also bound what the receiver must hold:
//
//	             acked              sent                end
//	sender   ------|-----------------|-------------------|        at most window from acked to end
//	               | retained        | not on this link  |
//	receiver -------------|---------------|                       at most window from read to received
//	                    read           received
//
//	always         acked <= read <= received <= the highest sent <= end
//
// The end of a direction has a number too, the one after the last byte, so that it is
// acknowledged like a byte. On a new link each end names received, and the other continues there.
//
// The end of a link says nothing about the stream. A stream ends when both programs have closed it,
// or when it has been without a link for too long, or when an end says so ([Code]).
//
// Bounds. A Conn holds at most window bytes in each direction, rounded up to chunks. It has two
// goroutines while it has a link, and without one only at the end that dials. A silent link is
// closed after at most interval+silence while something is expected, else idle later. The
// handshake has silence for each message. A stream without a link, or closed by one program alone,
// lasts as long as Keep says; but one from whose creator no frame has come, which may not know of
// it, lasts for silence only. A server ends streams without a link sooner if an owner has too many.
// All streams of a server together are at most MaxAll, and so hold at most twice the window of each.
//
// A relay between a link and the end that accepts can say, by what it writes first ([Preface]), for
// how long a stream is kept if the relay closes the link. A relay on the far side of an ssh sees the
// end of its input when the ssh client has ended: killed, or with its machine shut down in order.
// That differs from a link that falls silent, as when a laptop sleeps or changes its network, which
// the accepting end notices itself and for which Keep holds. Nothing else can be told apart: what
// ends the ssh client may as well have ended the program that would resume the stream, or not.
//
// A party that sees the bytes of links, but cannot change them, cannot resume the stream: the ends
// agree on a secret by X25519, and prove it with nonces of both. Nothing protects the bytes
// themselves, or the stream from a party that changes bytes; links must do that.
package stream

import (
	"errors"
	"time"
)

const (
	// window bounds the unacknowledged bytes in each direction. It is what a link of 300 Mbit/s
	// has in flight at 100 ms.
	window = 4 << 20

	// ackEvery is how many bytes a program reads before they are acknowledged by a frame of their
	// own. It takes a sixteenth of the window from the sender, and costs a frame for four large ones.
	ackEvery = 256 << 10

	// interval is the time between two looks at a link, and so before a ping. Most stalls of a
	// network are shorter, and a frame of 12 bytes costs a slow one nothing.
	interval = 5 * time.Second

	// silence is how long a link may be silent after a ping. TCP repeats a packet after 1, 3, 7 and
	// 15 s on a slow network, so before that a link may recover sooner than another can be made.
	silence = 15 * time.Second

	// idle is the silence after which an end pings although it expects nothing, so that it
	// notices that the other has vanished. Routers forget connections after 5 minutes or more.
	idle = time.Minute

	// farewell bounds how long the end of a stream may take to reach the other end, which programs
	// wait for when they end.
	farewell = time.Second
)

// Code is the reason for which an end refuses or ends a stream. It is an error.
type Code byte

// The other end sent one of these, or the stream was not resumed in time (Expired).
const (
	Version  Code = iota + 1 // it speaks another version
	Refused                  // another owner, or no proof
	Full                     // it has too many streams of this owner
	Unknown                  // it never had this stream
	Expired                  // it no longer has this stream
	Violated                 // this end broke the rules
	Ended                    // the other end stops
	Denied                   // this user or process may not use the other end
)

// Error implements error.
func (c Code) Error() string {
	switch c {
	case Version:
		return "the other end of the stream speaks another version of its protocol"
	case Refused:
		return "the other end refused to resume the stream"
	case Full:
		return "the other end keeps no more streams, and all of this user have a link; end some"
	case Unknown:
		return "the other end does not know the stream; it was probably started again"
	case Expired:
		return "the stream is no longer kept: it was without a link for too long, or has ended meanwhile"
	case Violated:
		return "the other end of the stream found invalid data"
	case Denied:
		return "the other end does not serve this user, or this process because it is confined; the log there says more"
	case Ended:
		return "the other end has ended the stream"
	}
	return "the other end has ended the stream for an unknown reason"
}

var (
	errInvalid  = errors.New("invalid data from the other end of the stream")
	errSilent   = errors.New("the link is silent")
	errReplaced = errors.New("the link was replaced")
	errEnded    = errors.New("the stream has ended")
)
